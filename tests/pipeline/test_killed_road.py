"""Whatever is killed, workers in mid-task and drivers between commits, each job gives what a plain model gives."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from millstream.batching import BatchConfig
from millstream.batching.messages import event_of
from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.mill.copying.differences import survey
from millstream.mill.manifest import Event, Manifest
from millstream.mill.policies.policy import Pair
from millstream.mill.providers import Providers
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import LocalStore, all_entries
from millstream.testing.batching import plain_batches
from millstream.testing.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("killed_road.py")
KILLS = {"long": 3}
"""Workers that are killed in a run: three are enough to end a job, by one task that is hit each time. Then the next run
goes on, with one less."""

MARKS: Sequence[Callable[[Path, int], bool]] = [
    lambda folder, _: has(folder, "node/*.staging/**/part-*"),
    lambda folder, messages: last_id(folder, "written") == messages,
    lambda folder, messages: last_id(folder, "streamed") > messages // 3,
    lambda folder, _: has(folder, "jobs/batch-*/data/_temporary/**/*.parquet"),
    lambda folder, _: last_id(folder, "ledger") > 0,
    lambda folder, _: has(folder, "jobs/duplication-*/inventory-*/data/bin-*.parquet"),
    lambda folder, _: has(folder, "jobs/duplication-*/data/*"),
    lambda folder, _: has(folder, "jobs/duplication-*/copies-*/data/bin-*.parquet"),
    lambda folder, _: has(folder, "jobs/integrity-*/data/bin-*.parquet"),
    lambda folder, _: has(folder, "jobs/report-*/inputs.json"),
    lambda folder, _: has(folder, "jobs/audit-*/*"),
]
"""Where the driver is killed, as a function of the folder and the number of messages: as each of these comes true."""


def has(folder: Path, pattern: str) -> bool:
    """Whether *folder* has such a file; what vanishes while it is looked for is not there."""
    with contextlib.suppress(FileNotFoundError):
        return any(folder.glob(pattern))
    return False


def last_id(folder: Path, name: str) -> int:
    with open_store(Settings(data=str(folder / "node")).log_url) as store:
        return store.log(LogSpec(name)).last_id


def test_p6_jobs_whose_workers_and_drivers_are_killed_give_what_plain_models_give(
    tmp_path: Path, untidy: Any, rules: BatchConfig, size: str
) -> None:
    messages = untidy(5, 3000 if size == "long" else 800)
    settings = load_program().settings_of(tmp_path)
    batches = lay_out(settings, messages, rules)
    stores = {name: LocalStore(tmp_path / name) for name in ("a", "b")}
    manifest = fill(stores, tmp_path, 200 if size == "long" else 60)
    wanted = survey(Providers(stores, SystemClock()), manifest, Pair("a", "b"), "docs")
    missing = names(stores["a"]) - names(stores["b"])
    contents = {name: read(stores["a"], name) for name in missing}

    kills = KILLS.get(size, 1)
    marks = MARKS if size == "long" else ()  # each takes a Java machine of its own
    for seed, mark in enumerate(marks):
        kill_at(tmp_path, seed, lambda mark=mark: mark(tmp_path, len(messages)))
    finish(tmp_path, kills)

    sent = without_ids(messages)
    assert without_ids(read_all(settings.log_url, "written")) == sent
    assert without_ids(read_all(settings.log_url, "streamed")) == sent
    (plan,) = (record_of(path) for path in tmp_path.glob("jobs/duplication-*/job.json"))
    kinds = ("copies", "changes", "deletes", "same", "held", "replaced", "copied")
    assert {kind: plan["counts"][kind] for kind in kinds} == {kind: getattr(wanted, kind) for kind in kinds}
    assert {name: read(stores["b"], name) for name in missing} == contents
    rows = [manifest.get("b", "docs", name) for name in missing]
    assert all(row is not None and not row.deleted for row in rows)
    facts = pq.read_table(next(tmp_path.glob("jobs/integrity-*")) / "data", columns=["store", "content_id", "content"])
    found = {(row["store"], row["content_id"]): row["content"] for row in facts.to_pylist()}
    assert len(facts) == len(found)
    assert found == {
        (store, name): LocalStore(tmp_path / store).info("docs", name).checksum()
        for store in stores
        for name in names(stores[store])
    }
    (job,) = (path.parent for path in tmp_path.glob("jobs/batch-*/job.json"))
    assert sorted(name for name in pq.read_table(job / "data")["batch"].to_pylist() if name) == sorted(batches)
    with Node.open(settings) as node:
        index = node.observer.index
        assert {batch: len(index.find_batch("in", batch)) for batch in batches} == dict.fromkeys(batches, 1)
    (audit,) = (record_of(path) for path in tmp_path.glob("jobs/audit-*/job.json"))
    counts = audit["counts"]
    assert (counts["batches"], counts["messages"], counts["findings"]) == (len(batches), sum(batches.values()), 0)


def load_program() -> Any:
    """The program's module."""
    spec = importlib.util.spec_from_file_location("killed_road", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lay_out(settings: Settings, messages: Sequence[Message], rules: BatchConfig) -> dict[str, int]:
    """A node with *messages* in the log ``in``; the batches that the plain rule makes of them, with their sizes."""
    with Node.open(settings, create=True) as node:
        log = node.store.log(LogSpec("in", block_messages=97))
        with log.writer() as writer:
            for start in range(0, len(messages), 1000):
                writer.append(messages[start : start + 1000])
        events = [event_of(message) for part in log.read() for message in part]
    return {batch.batch: len(batch.events) for batch in plain_batches(events, rules)[0]}


def fill(stores: dict[str, LocalStore], folder: Path, count: int) -> Manifest:
    """Items at both ends or at one, and the manifest of them."""
    draw = random.Random(8)
    manifest = Manifest(sa.create_engine(f"sqlite:///{folder / 'manifest.db'}"))
    for store in stores.values():
        store.create_space("docs")
    for number in range(count):
        body = draw.randbytes(draw.randrange(20_000))
        for store in draw.choice([("a", "b"), ("a",), ("a",), ("b",)]):
            info = stores[store].put("docs", f"item-{number:04}", io.BytesIO(body))
            manifest.writer.record([Event(store, "docs", info.content_id, 2**60, info.checksum(), info.size)])
    return manifest


def kill_at(folder: Path, seed: int, mark: Callable[[], bool]) -> None:
    """Run the program, and kill it as soon as *mark* comes true, or let it end; a worker of it is killed as well.

    Where that worker was one too many, the program goes on once more without.
    """
    for kills in (1, 0):
        child = subprocess.Popen(command_of(folder, seed, kills), stderr=subprocess.DEVNULL)
        try:
            until(lambda child=child: child.poll() is not None or mark(), "the moment to kill at", seconds=300)
        finally:
            child.kill()
            child.wait()
        if child.returncode != 1:
            return


def finish(folder: Path, kills: int) -> None:
    """Run the program to its end."""
    for turn in range(kills + 1):
        command = command_of(folder, 100 + turn, kills - turn)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        assert done.returncode == 1, done.stderr[-3000:]
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
    pytest.fail(f"a run without kills failed: {done.stderr[-3000:]}")


def command_of(folder: Path, seed: int, kills: int) -> list[str]:
    """The program, as one would type it."""
    return [sys.executable, str(PROGRAM), str(folder), str(seed), str(kills)]


def names(store: LocalStore) -> set[str]:
    return {entry.content_id for entry in all_entries(store, "docs")}


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
