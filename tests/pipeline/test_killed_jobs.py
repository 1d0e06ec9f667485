"""Whatever dies, tasks in their midst and drivers between commits, each job gives what a plain model gives."""

from __future__ import annotations

import contextlib
import io
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from millstream.batching import BatchConfig, Rulebook
from millstream.batching.message_events import event_from_message
from millstream.batching.service import BatchService
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.differences import count_differences
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.node import Node
from millstream.pipeline.output.job_folder import latest_attempt
from millstream.settings import Settings
from millstream.stores import LocalStore, all_entries
from millstream.testing.batching_oracle import plain_batches
from millstream.testing.dids import DidOwner
from millstream.testing.killed_programs import kill_at
from suite.engines import open_engine
from support.programs import load_program

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("killed_jobs.py")

MARKS: Sequence[Callable[[Path, int], bool]] = [
    lambda folder, _: has(folder, "node/*.staging/**/part-*"),
    lambda folder, messages: last_id(folder, "written") == messages,
    lambda folder, messages: last_id(folder, "streamed") > messages // 3,
    lambda folder, _: has(folder, "jobs/batch-*/attempt-*/data/_temporary"),
    lambda folder, _: last_id(folder, "system:ledger") > 0,
    lambda folder, _: has(folder, "jobs/inventory-*/attempt-*/data/bin-*.parquet"),
    lambda folder, _: has(folder, "jobs/duplication-*/attempt-*/data/*"),
    lambda folder, _: has(folder, "jobs/duplication-*/copies-*/attempt-*/data/bin-*.parquet"),
    lambda folder, _: has(folder, "jobs/changes-*/attempt-*/data/*"),
    lambda folder, _: has(folder, "jobs/integrity-*/attempt-*/data/bin-*.parquet"),
    lambda folder, _: has(folder, "jobs/report-*/inputs.json"),
    lambda folder, _: has(folder, "jobs/audit-*/*"),
]
"""Where the driver is killed, as a function of the folder and the number of messages: as each of these comes true."""

JOBS = {
    "batch", "anchor", "verify-batches", "inventory", "duplication", "copies", "changes", "statistics", "integrity",
    "report", "audit", "audit-identifiers",
}  # fmt: skip
"""The jobs, by the names in their lines."""

CI_MARKS = MARKS[2:3]
"""Each takes a Java machine of its own, and an early one the least beside; other tests kill drivers of other jobs."""


def has(folder: Path, pattern: str) -> bool:
    """Whether *folder* has such a file; what vanishes while it is looked for is not there."""
    with contextlib.suppress(FileNotFoundError):
        return any(folder.glob(pattern))
    return False


def output_of(folder: Path, job: str) -> Path:
    """The output of the one run of *job* that was finished in *folder*."""
    (record,) = folder.glob(f"jobs/{job}-*/job.json")
    return latest_attempt(record.parent) / "data"


def last_id(folder: Path, name: str) -> int:
    with open_store(Settings(data=str(folder / "node")).log_url) as store:
        return store.log(LogSpec(name)).last_id


def test_p6_jobs_whose_tasks_and_drivers_die_give_what_plain_models_give(
    tmp_path: Path, untidy: Any, rules: BatchConfig, size: str
) -> None:
    is_long = size == "long"
    messages = sorted(untidy(5, 3000 if is_long else 800), key=lambda message: message.received_at or 0)
    settings = load_program(PROGRAM).settings_of(tmp_path)
    batches = lay_out(settings, messages, rules)
    served, wrong = serve(settings, rules)
    operations = anchor_operations(settings, 40 if is_long else 8)
    stores = {name: LocalStore(tmp_path / name) for name in ("a", "b")}
    manifest = fill(stores, tmp_path, 200 if is_long else 60)
    wanted = count_differences(ConfiguredStores(stores, SystemClock()), manifest, Pair("a", "b"), "docs")
    before = {name: sizes(store) for name, store in stores.items()}
    missing = before["a"].keys() - before["b"].keys()
    contents = {name: read(stores["a"], name) for name in missing}

    marks = MARKS if is_long else CI_MARKS
    kills = 0
    for seed, mark in enumerate(marks):
        reached = lambda mark=mark: mark(tmp_path, len(messages))  # noqa: E731
        if not reached():  # the driver before may have got further than its own mark
            kill_at(command_of(tmp_path, seed), reached, f"mark {seed}")
            kills += 1
    assert kills > len(marks) // 2
    done = subprocess.run(command_of(tmp_path, 100), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

    told = record_of(tmp_path / "told.json")
    check_messages(settings, messages, batches)
    check_verified(told["served"], told["wrong"], served, wrong)
    (plan,) = (record_of(path) for path in tmp_path.glob("jobs/duplication-*/job.json"))
    kinds = ("copies", "changes", "deletes", "same", "held", "replaced", "copied")
    assert {kind: plan["counts"][kind] for kind in kinds} == {kind: getattr(wanted, kind) for kind in kinds}
    assert {name: read(stores["b"], name) for name in missing} == contents
    rows = [manifest.get("b", "docs", name) for name in missing]
    assert all(row is not None and not row.deleted for row in rows)
    check_sweep(tmp_path, stores)
    check_growth(tmp_path, told["statistics"], before, {name: sizes(store) for name, store in stores.items()})
    (audit,) = (record_of(path) for path in tmp_path.glob("jobs/audit-*/job.json"))
    counts = audit["counts"]
    assert (counts["batches"], counts["messages"], counts["findings"]) == (len(batches), sum(batches.values()), 0)
    assert told["identifiers"] == operations | {"findings": 0}
    lines = [msgspec.json.decode(line) for line in (tmp_path / "jobs.jsonl").read_bytes().splitlines()]
    assert {line["job"] for line in lines} >= JOBS
    assert all({"rows_in", "rows_out", "bytes", "seconds"} <= line.keys() for line in lines)


def check_messages(settings: Settings, messages: Sequence[Message], batches: Mapping[str, int]) -> None:
    """Whether what was written, batched and anchored is what was sent, once."""
    sent = without_ids(messages)
    assert without_ids(read_all(settings.log_url, "written")) == sent
    assert without_ids(read_all(settings.log_url, "streamed")) == sent
    rows = pq.read_table(output_of(Path(settings.data).parent, "batch"), columns=["batch"])
    assert sorted(name for name in rows["batch"].to_pylist() if name) == sorted(batches)
    with Node.open(settings) as node:
        index = node.anchoring.observer.index
        assert {batch: len(index.find_batch("in", batch)) for batch in batches} == dict.fromkeys(batches, 1)


def check_verified(
    right: Mapping[str, Any], wrong: Mapping[str, Any], served: Sequence[Message], done: Mapping[str, str]
) -> None:
    """Whether all that the service gave agrees, and of what was *done* to a copy of it (kind by batch) all is told."""
    agreed = sum(1 for message in served if message.key)
    assert (right["agreed"], right["rejects_agreed"], right["differences"]) == (agreed, len(served) - agreed, {})
    assert {finding["batch"]: finding["kind"] for finding in wrong["findings"]} == done
    assert wrong["agreed"] == agreed - len(done)


def check_sweep(folder: Path, stores: Mapping[str, LocalStore]) -> None:
    """Whether each item was read once, and its sum is that of its bytes."""
    facts = pq.read_table(output_of(folder, "integrity"), columns=["store", "content_id", "content"])
    found = {(row["store"], row["content_id"]): row["content"] for row in facts.to_pylist()}
    assert len(facts) == len(found)
    assert found == {
        (name, item): store.info("docs", item).checksum() for name, store in stores.items() for item in sizes(store)
    }


def check_growth(
    folder: Path,
    figures: Sequence[Mapping[str, Any]],
    before: Mapping[str, Mapping[str, int]],
    now: Mapping[str, Mapping[str, int]],
) -> None:
    """Whether changes and statistics say what two listings (sizes by store and item) say; items were only added."""
    rows = pq.read_table(output_of(folder, "changes"), columns=["store", "content_id", "kind", "size"]).to_pylist()
    added = {(store, name): size for store in now for name, size in now[store].items() if name not in before[store]}
    assert {(row["store"], row["content_id"]): row["size"] for row in rows} == added
    assert (len(rows), {row["kind"] for row in rows}) == (len(added), {"added"})
    plain = {
        store: {
            "store": store,
            "space": "docs",
            "items": len(items),
            "bytes": sum(items.values()),
            "largest": max(items.values()),
            "added": len(items) - len(before[store]),
            "removed": 0,
            "changed": 0,
            "grown": sum(items.values()) - sum(before[store].values()),
        }
        for store, items in now.items()
    }
    assert {each["store"]: each for each in figures} == plain


def lay_out(settings: Settings, messages: Sequence[Message], rules: BatchConfig) -> dict[str, int]:
    """A node with *messages* in the log ``in``; the batches that the plain rule makes of them, with their sizes."""
    with Node.open(settings, create=True) as node:
        log = node.logs.store.log(LogSpec("in", block_messages=97))
        with log.writer() as writer:
            for start in range(0, len(messages), 1000):
                writer.append(messages[start : start + 1000])
        events = [event_from_message(message) for part in log.read() for message in part]
    return {batch.batch: len(batch.events) for batch in plain_batches(events, rules)[0]}


def serve(settings: Settings, rules: BatchConfig) -> tuple[list[Message], dict[str, str]]:
    """What the service in process gives of ``in``, in the log ``served``; and what was done to a copy of it, ``wrong``.

    That is by batch: one is missing there, and another one doubled.
    """
    with Node.open(settings) as node:
        source, output = node.logs.store.log(LogSpec("in")), node.logs.store.log(LogSpec("served"))
        service = BatchService(source, output, Rulebook(rules), FileDocument(node.folder / "served.state"))
        service.step()
        service.close()
        given = [message for batch in output.read() for message in batch]
        lost, twice = [message for message in given if message.key][3:5]
        kept = [message for message in [*given, twice] if message.key != lost.key]
        with node.logs.store.log(LogSpec("wrong")).writer("batching") as writer:
            writer.append([Message(m.body, m.key) for m in kept], sequence=source.last_id)
    return given, {lost.key: "missing", twice.key: "doubled"}


def anchor_operations(settings: Settings, people: int) -> dict[str, int]:
    """Let *people* make an identifier each and some change it, in several anchors; how many of both there are."""
    made = [DidOwner(f"person {number}") for number in range(people)]
    steps = [
        [person.create for person in made],
        [person.update() for person in made[::2]],
        [person.recover() for person in made[::3]],
    ]
    with Node.open(settings) as node, node.registry.instance as registry:
        for step in steps:
            outcomes = registry.acceptance.submit_many([canonical_json(operation.request) for operation in step])
            assert all(outcome.status for outcome in outcomes)
            while registry.queue.claim(1000):
                pass
            registry.writer.cut(force=True)
    return {"identifiers": people, "operations": sum(map(len, steps))}


def fill(stores: Mapping[str, LocalStore], folder: Path, count: int) -> Manifest:
    """Items at both ends or at one, and the manifest of them."""
    draw = random.Random(8)
    manifest = Manifest(open_engine(f"sqlite:///{folder / 'manifest.db'}"))
    for store in stores.values():
        store.create_space("docs")
    for number in range(count):
        body = draw.randbytes(draw.randrange(20_000))
        for store in draw.choice([("a", "b"), ("a",), ("a",), ("b",)]):
            info = stores[store].put("docs", f"item-{number:04}", io.BytesIO(body))
            manifest.writer.record([ManifestEvent(store, "docs", info.content_id, 2**60, info.checksum(), info.size)])
    return manifest


def command_of(folder: Path, seed: int) -> list[str]:
    """The program, as one would type it."""
    return [sys.executable, str(PROGRAM), str(folder), str(seed)]


def sizes(store: LocalStore) -> dict[str, int]:
    """The size of each item."""
    return {entry.content_id: entry.size for entry in all_entries(store, "docs")}


def read(store: LocalStore, name: str) -> bytes:
    with store.open("docs", name) as file:
        return file.read()


def record_of(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return record


def read_all(url: str, log: str) -> list[Message]:
    with open_store(url) as store:
        return [message for batch in store.log(LogSpec(log), create=False).read() for message in batch]


def without_ids(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return sorted((m.body, m.key, m.source, m.event_time, m.received_at, m.headers) for m in messages)
