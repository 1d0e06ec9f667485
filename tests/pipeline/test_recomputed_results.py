"""Results of jobs, equal to the row to those computed from the same input by other programs.

The helpers ``support.recompute_…`` know the input and the documentation, not the jobs: they are plain Python.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import millstream.node
from millstream.log import LogSpec, Message, open_store
from millstream.mill.manifest import ManifestEvent
from millstream.node.spark import SparkPart
from millstream.pipeline.settings import RESULTS_SETTING
from millstream.settings import load_settings
from suite.sizes import sized
from support.commands import run_command
from support.recompute_anchors import Fact, audited
from support.recompute_batches import Batch, Override, Refusal, Row, Rules, batches_of
from support.recompute_copies import Outcome, Planned, Sizes, outcomes_of, plan_of, reports_of, sizes_of
from support.recompute_difference import assert_same_rows, assert_same_set
from support.recompute_files import GRACE, MAX_DELAY, SOURCES, WINDOW, write_message_files, write_record_files
from support.recompute_ingest import Places, Rejected, Taken, ingested
from support.recompute_stores import DAY, SPACES, STORES, Copy, changed_copies, made_copies, write_copies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROWS = sized(quick=3000, ci=10_000, long=300_000)
SEED = 2013
PLACES = Places("station", "sensor", "value")
AS_RECORDS = ["--shape", "record", "--source", "$.station", "--key", "$.sensor", "--value", "$.value"]


@pytest.fixture(scope="module")
def in_tests_session(spark: SparkSession) -> Iterator[None]:
    """Commands run in the Spark session of the tests."""

    @contextlib.contextmanager
    def shared(part: SparkPart, **_options: bool) -> Iterator[SparkSession]:
        spark.conf.set(RESULTS_SETTING, part.options.results)
        yield spark
        spark.conf.unset(RESULTS_SETTING)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkPart, "session", shared)
        yield


class Node(NamedTuple):
    """A node's folder."""

    data: Path

    def run(self, *command: str, code: int = 0) -> dict[str, Any]:
        """Run a command that prints one JSON object and ends with *code*."""
        (answer,) = self.run_lines(*command, code=code)
        return answer

    def run_lines(self, *command: str, code: int = 0) -> list[dict[str, Any]]:
        """Run a command that prints a JSON object a line and ends with *code*."""
        result = run_command(*command, "--data", str(self.data), "--json")
        assert result.code == code, result.err
        return [json.loads(line) for line in result.out.splitlines()]

    def messages(self, log: str) -> list[Message]:
        """All messages of a log."""
        with open_store(f"sqlite:///{self.data / 'log.db'}") as store:
            return [message for batch in store.log(LogSpec(log)).read() for message in batch]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, in_tests_session: None) -> Node:
    """A node with the messages and the records of a folder of files in its logs, and the files beside it."""
    folder = tmp_path_factory.mktemp("recomputed")
    write_message_files(folder / "messages", random.Random(SEED), ROWS)
    write_record_files(folder / "records", random.Random(SEED), ROWS // 2)
    node = Node(folder / "data")
    (folder / "data").mkdir()
    node.run("pipeline", "ingest", str(folder / "messages"), "--log", "messages", code=1)
    node.run("pipeline", "ingest", str(folder / "records"), "--log", "records", *AS_RECORDS, code=1)
    return node


@pytest.mark.parametrize(("log", "places"), [("messages", None), ("records", PLACES)])
def test_ingest_takes_and_puts_aside_the_rows_that_another_program_does(
    node: Node, log: str, places: Places | None
) -> None:
    expected = ingested(node.data.parent / log, places)
    assert expected.taken
    assert (
        {row.key for row in expected.rejected} >= {"message", "row", "file"} if places is None else {"member", "time"}
    )
    messages = node.messages(log)
    assert [message.id for message in messages] == list(range(1, len(messages) + 1))
    taken = [_taken(message, row) for message, row in zip(messages, expected.taken, strict=False)]
    assert_same_rows([*taken, *messages[len(taken) :]], expected.taken)
    rejects = node.messages(f"{log}.rejects")
    rejected = [_rejected(message, row) for message, row in zip(rejects, expected.rejected, strict=False)]
    assert_same_rows([*rejected, *rejects[len(rejected) :]], expected.rejected)
    files = [json.loads(message.body) for message in node.messages(f"{log}.files")]
    assert [file["place"] for file in files] == list(range(1, len(files) + 1))
    found = [(file["path"], file["sha256"] if not file["unusable"] else "", not file["unusable"]) for file in files]
    assert_same_rows(found, expected.files)


def _taken(message: Message, expected: Taken) -> Taken:
    """A message of the log as a row; times that were not set are left out, if the log set them as documented."""
    event_time, received_at = message.event_time, message.received_at
    if expected.event_time is None and event_time == received_at:
        event_time = None
    if expected.received_at is None and received_at is not None and received_at > 2**50:
        received_at = None
    return Taken(message.source, message.key, event_time, received_at, message.body, message.headers)


def _rejected(message: Message, expected: Rejected) -> Rejected:
    headers = {name: value.decode() for name, value in message.headers}
    why = headers["why"]
    where = expected.where if why.startswith(expected.where) and why > expected.where else why
    return Rejected(message.source, message.key, message.body, headers["file"], where)


RULES = {
    "plain": Rules(window=WINDOW, max_delay=MAX_DELAY),
    "capped": Rules(
        window=WINDOW, max_delay=MAX_DELAY, leap=WINDOW, max_count=4, max_bytes=300, late="side", grace=GRACE
    ),
    "amended": Rules(window=WINDOW, max_delay=MAX_DELAY, conflict_cut="midpoint", late="amend", grace=GRACE),
}
OVERRIDES = [
    Override(SOURCES[1], "", Rules(window=5 * WINDOW, max_delay=2 * MAX_DELAY)),
    Override("", "temp", Rules(window=0, max_delay=MAX_DELAY)),
    Override(SOURCES[0], "dewp", Rules(window=WINDOW, max_delay=0, leap=0)),
]


@pytest.mark.parametrize(
    ("rules", "overrides", "flush"),
    [("plain", OVERRIDES, False), ("capped", [], True), ("amended", [], True)],
    ids=["overrides", "caps and side batches", "midpoint and amendments"],
)
def test_batch_makes_the_batches_that_another_program_makes(
    node: Node, tmp_path: Path, rules: str, overrides: list[Override], flush: bool
) -> None:
    messages = node.messages("messages")
    settings = tmp_path / "rules.toml"
    settings.write_text(_settings(RULES[rules], overrides))
    command = ["pipeline", "batch", "messages", "--config", str(settings), "--flush" if flush else "--no-flush"]
    answer = node.run(*command)
    rows = [_row(message) for message in messages]
    batches, refusals = batches_of(rows, RULES[rules], overrides, flush=flush)
    parts = sorted(Path(answer["data"]).glob("*.parquet"))
    found = [row for part in parts for row in pq.read_table(part).to_pylist()]
    assert_same_rows([_batch(row) for row in found if row["batch"]], sorted(batches, key=_place))
    refused = [Refusal(row["ids"][0], row["reason"], row["source"], row["start"]) for row in found if row["reason"]]
    assert_same_rows(sorted(refused), sorted(refusals))
    settled = {number for batch in batches for number in batch.events} | {refusal.id for refusal in refusals}
    assert answer["counts"]["open"] == len(rows) - len(settled)
    assert len(batches) > ROWS / 20
    assert {batch.cut for batch in batches} >= ({"window", "conflict"} if flush else {"window"})
    assert {batch.kind for batch in batches} == {"batch"} | {"side": {"side"}, "amend": {"amendment"}}.get(
        RULES[rules].late, set()
    )
    assert {refusal.reason for refusal in refusals} == {"late", "future", "duplicate", "conflicting_duplicate", "time"}


def _settings(rules: Rules, overrides: list[Override]) -> str:
    tables = [f"[batching]\n{_table(rules)}"]
    for source, key, own in overrides:
        names = {"source": source, "key": key}
        named = "\n".join(f"{name} = {json.dumps(value)}" for name, value in names.items() if value)
        tables.append(f"[[batching.override]]\n{named}\n{_table(own)}")
    return "\n".join(tables)


def _table(rules: Rules) -> str:
    values: dict[str, object] = {
        "window": f"{rules.window}us", "max_delay": f"{rules.max_delay}us", "leap": f"{rules.most_leap}us",
        "conflict_cut": rules.conflict_cut, "late": rules.late,
    }  # fmt: skip
    values |= {"max_count": rules.max_count or 0, "max_bytes": rules.max_bytes or 0}
    if rules.grace:
        values["grace"] = f"{rules.grace}us"
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + "\n"


def _row(message: Message) -> Row:
    assert message.event_time is not None
    assert message.received_at is not None
    return Row(
        message.id, message.source, message.key, message.event_time, message.received_at, message.body, message.headers
    )


def _batch(row: dict[str, Any]) -> Batch:
    return Batch(
        row["batch"], row["source"], row["start"], row["end"], row["closed_at"], row["cut"], row["kind"],
        tuple(row["amends"]), tuple(row["ids"]), row["root"], row["lines"],
    )  # fmt: skip


def _place(batch: Batch) -> tuple[int, bytes, str]:
    return batch.start, batch.source.encode(), batch.batch


def test_audit_finds_what_another_program_finds(node: Node, tmp_path: Path) -> None:
    settings = tmp_path / "rules.toml"
    settings.write_text(_settings(RULES["plain"], []))
    for log in ("messages", "records"):
        node.run("pipeline", "anchor", log, "--flush", "--config", str(settings))
    cas = node.data / "cas"
    entries = node.run_lines("anchor", "ledger")
    expected = audited(entries, cas)
    assert not expected.damaged
    for log in ("messages", "records"):
        batches, refusals = batches_of([_row(message) for message in node.messages(log)], RULES["plain"], flush=True)
        headers = [header for header in expected.headers if header["log"] == log]
        anchored = [
            (header["batch"], header["root"], header["ids"], header["closed_at"], header["cut"]) for header in headers
        ]
        assert_same_set(anchored, [(one.batch, one.root, one.events, one.closed_at, one.cut) for one in batches])
        refused = [(number, reason) for of, number, reason in expected.rejects if of == log]
        assert_same_rows(sorted(refused), sorted((one.id, one.reason) for one in refusals))
    answer = node.run("pipeline", "audit")
    assert_same_rows(_facts(node), sorted(expected.facts))
    anchors = [fact for fact in expected.facts if fact.ordinal < 0]
    assert (answer["rows_in"], answer["bytes"], answer["findings"]) == (
        len(entries),
        sum(fact.bytes for fact in anchors),
        [],
    )
    assert answer["inputs"]["head"] == entries[-1]["hash"]
    assert answer["counts"] == {
        "batches": len(expected.headers),
        "files": sum(fact.files for fact in anchors),
        "findings": 0,
        "invalid": 0,
        "messages": sum(len(fact.ids) for fact in expected.facts),
        "refused": 0,
    }
    _damage(cas, json.loads((cas / entries[0]["anchor_string"].partition(".")[2]).read_bytes())["files"][-1]["uri"])
    expected = audited(entries, cas)
    damaged = node.run("pipeline", "audit", code=1)
    assert_same_rows(_facts(node), sorted(expected.facts))
    found = [(one["number"], one["what"]) for one in damaged["findings"]]
    assert found == [(number, "file") for number, _ in expected.damaged] == [(1, "file")]
    assert expected.damaged[0][1] in damaged["findings"][0]["reason"]


def _facts(node: Node) -> list[Fact]:
    """The rows of the last audit, without those of its findings, by number and place."""
    folder = max((node.data / "jobs").glob("audit-*/job.json"), key=lambda path: path.stat().st_mtime).parent
    rows = [row for part in folder.glob("attempt-*/data/*.parquet") for row in pq.read_table(part).to_pylist()]
    named = [{name: row[name] for name in Fact._fields} for row in rows if row["what"] is None]
    return sorted(Fact(**row | {"ids": tuple(row["ids"])}) for row in named)


def _damage(cas: Path, cid: str) -> None:
    data = bytearray((cas / cid).read_bytes())
    data[len(data) // 2] ^= 1
    (cas / cid).write_bytes(data)


PAIRS = [("primary", "second"), ("primary", "third")]


class StoresNode(NamedTuple):
    """A node with three stores, and what is there and recorded of each item."""

    node: Node
    copies: list[Copy]
    made_at: int

    @property
    def stores(self) -> Path:
        return self.node.data / "stores"

    def rows(self, job: str, **inputs: object) -> list[dict[str, Any]]:
        """The rows of the last result of *job* with those *inputs*."""
        folders = [
            path.parent
            for path in sorted(
                (self.node.data / "jobs").glob(f"{job}-*/inputs.json"), key=lambda path: path.stat().st_mtime
            )
            if json.loads(path.read_text()).items() >= inputs.items()
        ]
        parts = folders[-1].glob("attempt-*/data/*.parquet")
        return [row for part in sorted(parts) for row in pq.read_table(part).to_pylist()]


@pytest.fixture(scope="module")
def stores_node(tmp_path_factory: pytest.TempPathFactory, in_tests_session: None) -> StoresNode:
    """A node whose three stores have items with every kind of difference between bytes, providers and the manifest."""
    node = Node(tmp_path_factory.mktemp("stores"))
    tables = [f'[stores.{name}]\nurl = "file://{{data}}/stores/{name}"\n' for name in STORES]
    (node.data / "millstream.toml").write_text("".join(tables))
    pairs = [{"srcStoreId": source, "destStoreId": destination} for source, destination in PAIRS]
    (node.data / "policies").mkdir()
    (node.data / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": pairs}))
    (node.data / "policies" / "duplication-accounts.json").write_text('["local"]')
    for store in STORES:
        for space in SPACES:
            assert run_command("store", "create", store, space, "--data", str(node.data)).code == 0
    made_at = (node.data / "stores" / STORES[0]).stat().st_mtime_ns
    copies = made_copies(node.data / "stores", random.Random(SEED), ROWS // 3, made_at)
    recorded_at = made_at // 1000 - 2 * DAY * 1_000_000
    events = [
        ManifestEvent(
            copy.store, copy.space, copy.content_id, recorded_at, copy.manifest, copy.size, deleted=copy.deleted
        )
        for copy in copies
        if copy.manifest is not None or copy.deleted
    ]
    with millstream.node.Node.open(load_settings({"data": str(node.data)}, environment={})[0]) as opened:
        for start in range(0, len(events), 5000):
            opened.stores.manifest.writer.record(events[start : start + 5000])
    return StoresNode(node, copies, made_at)


def test_duplication_plans_what_another_program_plans(stores_node: StoresNode) -> None:
    plans = stores_node.node.run_lines("pipeline", "duplication", "--dry-run", "--name", "plan")
    assert len(plans) == len(PAIRS) * len(SPACES)
    for told in plans:
        source, destination, space = told["pair"]["source"], told["pair"]["destination"], told["space"]
        plan, figures = plan_of(stores_node.copies, source, destination, space)
        inputs = {"run": "plan", "source": source, "destination": destination, "space": space}
        rows = stores_node.rows("duplication", **inputs)
        assert_same_rows([Planned(**row) for row in rows], sorted(plan, key=lambda one: one.content_id.encode()))
        assert {name: told[name] for name in figures} == figures


def test_integrity_and_report_find_what_another_program_finds(stores_node: StoresNode) -> None:
    outcomes = sorted(outcomes_of(stores_node.copies))
    assert {outcome.row for outcome in outcomes} == ROWS_OF_THE_TABLE
    expected = reports_of(stores_node.copies, PAIRS)
    told = stores_node.node.run_lines("pipeline", "integrity", code=1)
    rows = stores_node.rows("report")
    assert_same_rows(sorted(Outcome(**{name: row[name] for name in Outcome._fields}) for row in rows), outcomes)
    assert {(report["store"], report["space"]) for report in told} == set(expected)
    for (store, space), figures in expected.items():
        report = stores_node.node.run(
            "pipeline", "report", store, space, code=0 if figures["result"] == "SUCCESS" else 1
        )
        report["findings"] = [tuple(one[name] for name in FINDING) for one in report["findings"]]
        assert_same_rows(report["findings"], figures["findings"])
        assert {name: report[name] for name in figures} == figures
        assert report["coverage"] == 1


FINDING = ("content_id", "row", "kind", "manifest", "provider", "content")
ROWS_OF_THE_TABLE = {"B1", "B3", "B7", "B9", "B10", "B11", "B15", "B16", "B18", "B19", "B24", "B27"}


def test_statistics_count_what_another_program_counts(stores_node: StoresNode) -> None:
    stores_node.node.run_lines("pipeline", "statistics")
    after = changed_copies(random.Random(SEED), stores_node.copies)
    write_copies(stores_node.stores, after, stores_node.made_at)
    told = stores_node.node.run_lines("pipeline", "statistics")
    assert_same_rows([Sizes(**row) for row in told], sizes_of(stores_node.copies, after))
