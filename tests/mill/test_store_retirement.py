"""The records of a store that was removed from the settings are retired, and nothing else changes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.mill import manifest_writer
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.differences import ComparedItem, ItemDifference
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.manifest_table import AddedItems, CheckResult
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.statistics import SpaceSize, SpaceStatisticsTable
from millstream.mill.retirement import StoreInUseError, StoreRetirement
from millstream.node import Node
from millstream.rest.operator_audit_log import OperatorAuditEvent, OperatorAuditLog
from millstream.settings import load_settings
from millstream.status.verdict.copies import LatestReports, look_at_copies
from millstream.stores import LocalStore
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox
from millstream.testing.damage import flip_bit
from support.commands import CommandResult, run_command
from support.table_scripts import retirement

Run = Callable[..., CommandResult]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node whose store *one* is copied to *two* and *three*."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
    write_settings(folder, "one", "two", "three")
    for number in range(4):
        put(folder, f"item {number}")
    return folder


@pytest.fixture
def mill(data: Path) -> Run:
    return lambda *words: run_command("mill", *words, "--data", str(data))


def write_settings(folder: Path, *stores: str) -> None:
    """Let the node have *stores*, of which the first is copied to the others."""
    sections = [f'[stores.{name}]\nurl = "file://{folder}/stores/{name}"\n' for name in stores]
    (folder / "millstream.toml").write_text("\n".join(sections))
    for name in stores:
        (folder / "stores" / name).mkdir(parents=True, exist_ok=True)
    write_policy(folder, *stores)


def write_policy(folder: Path, source: str, *copies: str) -> None:
    pairs = [{"srcStoreId": source, "destStoreId": copy} for copy in copies]
    (folder / "policies" / "me-duplication-policy.json").write_text(json.dumps({"defaultPolicies": pairs}))


def local(folder: Path, store: str) -> LocalStore:
    return LocalStore(folder / "stores" / store)


def put(folder: Path, name: str) -> None:
    store = local(folder, "one")
    store.create_space("s")
    store.put("s", name, io.BytesIO(name.encode()))


def opened(folder: Path) -> Node:
    return Node.open(load_settings({"data": str(folder)}, environment={})[0])


def retirements(folder: Path) -> Sequence[OperatorAuditEvent]:
    with opened(folder) as node:
        return [one for one in OperatorAuditLog(node.databases.own, node.clock).last() if one.action == "retire"]


def records(folder: Path, store: str) -> int:
    with opened(folder) as node:
        return node.stores.manifest.rows(store).num_rows


def test_checks_and_reports_are_in_order_once_a_removed_store_is_retired(data: Path, mill: Run) -> None:
    mill("duplicate")
    flip_bit(local(data, "three").path_of("s", "item 1"))
    assert mill("check").code == 1
    write_settings(data, "one", "two")
    told = mill("check")
    assert told.code == 1
    assert "if it was removed for good, `millstream mill retire three` retires its records" in told.err
    assert mill("report").code == 1
    shown = mill("retire", "three")
    assert (shown.code, records(data, "three"), retirements(data)) == (0, 4, [])
    assert shown.out.splitlines() == [
        "three: 4 items (24 B) in 1 space",
        "nothing was changed; `millstream mill retire three --yes` retires these records",
    ]
    assert mill("retire", "three", "--yes").out == "three: 4 items (24 B) in 1 space retired\n"
    (event,) = retirements(data)
    assert (event.target, event.facts["items"], event.facts["last_copies"]) == ("store three", 4, 0)
    assert [mill(*words).code for words in (["check"], ["report"], ["report", "--verify"], ["reconcile"])] == [0] * 4
    assert "three" not in mill("report").out
    assert "failures" not in json.loads(mill("produce", "bits", "--once", "--json").out)
    with opened(data) as node:
        assert ("three", "s") in node.mill.reports.archive.spaces(), "history stays"
        copies = look_at_copies(node, LatestReports(node.mill.reports.archive), node.clock.now())
    assert sorted(copies.reports) == [("one", "s"), ("two", "s")]
    assert local(data, "three").has_space("s"), "no store is touched"
    assert mill("retire", "three", "--yes").code == 3


def test_a_store_that_is_in_use_is_not_retired(data: Path, mill: Run) -> None:
    mill("duplicate")
    told = mill("retire", "three", "--yes")
    assert (told.code, "remove its section there first" in told.err) == (2, True)
    write_settings(data, "one", "two")
    for stores in (("one", "three"), ("three", "one")):
        write_policy(data, *stores)
        told = mill("retire", "three", "--yes")
        assert (told.code, "remove store 'three' from the policy first" in told.err) == (2, True)
    told = mill("retire", "four", "--yes")
    assert (told.code, "removed stores with records: three" in told.err) == (3, True)
    assert (records(data, "three"), retirements(data)) == (4, [])


def test_a_store_that_processes_out_of_sight_may_be_changing_is_retired_only_by_an_option(
    data: Path, mill: Run
) -> None:
    mill("duplicate")
    with opened(data) as node:
        outbox = AuditOutbox(node.databases.own, holder="elsewhere/7/2/ab")
        outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "me", "three", "file", "s", "new", "a" * 64, 1))
    write_settings(data, "one", "two")
    shown = mill("retire", "three")
    told = "make sure that these processes have ended, which this machine cannot check: process 7 on elsewhere"
    assert (shown.code, told in shown.err) == (0, True)
    assert "`millstream mill retire three --yes --writers-stopped` retires" in shown.out
    refused = mill("retire", "three", "--yes")
    assert refused.code == 1
    assert (
        "began them have ended: process 7 on elsewhere; make sure that they have ended, and add --writers"
        in refused.err
    )
    assert (records(data, "three"), retirements(data)) == (4, [])
    assert mill("retire", "three", "--yes", "--writers-stopped").code == 0
    (event,) = retirements(data)
    assert records(data, "three") == 0
    assert (event.facts["writers_stopped"], event.facts["unknown_writers"]) == (True, ["process 7 on elsewhere"])


def test_a_retirement_that_is_refused_changes_nothing() -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    manifest, statistics, outbox = Manifest(engine), SpaceStatisticsTable(engine), AuditOutbox(engine)
    guard = ChangeGuard(engine, VirtualClock(), manifest.count)
    statistics.add(SpaceSize("gone", "s", 1, 9, 45))
    vanished = ComparedItem("a", ItemDifference.HELD, 1, replaces=False)
    guard.items.record(Pair("gone", "here"), "s", [vanished], is_held=False)
    manifest.writer.record([ManifestEvent("gone", "s", "a", 102, "a" * 64)])
    retiring = StoreRetirement(manifest, statistics, guard, ["here"], Policies(), outbox=outbox)
    found = retiring.find("gone")
    outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "me", "gone", "file", "s", "new", "a" * 64, 1))
    with pytest.raises(StoreInUseError, match="is changing store 'gone': restart this process first"):
        retiring.retire(found, VirtualClock(5))
    assert [size.items for size in statistics.latest("gone")] == [9]
    assert guard.items.counts()
    assert manifest.count("gone") == 1


def test_the_record_of_the_last_good_copy_is_retired_only_by_an_option(data: Path, mill: Run) -> None:
    mill("duplicate")
    for store in ("one", "two"):
        flip_bit(local(data, store).path_of("s", "item 1"))
    assert mill("check").code == 1
    write_settings(data, "one", "two")
    shown = mill("retire", "three")
    assert (shown.code, shown.err) == (0, "1 item without another copy that is recorded as good:\n  s/item 1\n")
    assert "`millstream mill retire three --yes --last-copies` retires" in shown.out
    told = mill("retire", "three", "--yes")
    assert (told.code, "without store 'three', 1 item ('s/item 1') has no copy" in told.err) == (1, True)
    assert (records(data, "three"), retirements(data)) == (4, [])
    assert mill("retire", "three", "--yes", "--last-copies").code == 0
    (event,) = retirements(data)
    assert (records(data, "three"), event.facts["last_copies"]) == (0, 1)


def test_a_retired_source_that_comes_back_empty_deletes_no_copy(data: Path, mill: Run) -> None:
    """A retirement is no deletion: a tombstone would allow to delete the copies."""
    mill("duplicate")
    write_settings(data, "two", "three")
    assert mill("retire", "one", "--yes").code == 0
    local(data, "one").path_of("s", "item 1").unlink()
    write_settings(data, "one", "two", "three")
    mill("duplicate")
    assert local(data, "two").info("s", "item 1").size == 6


def test_rows_are_removed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_writer, "_REMOVED", 3)
    manifest = Manifest(sa.create_engine("sqlite://", poolclass=sa.StaticPool))
    for store in ("gone", "here"):
        for space in ("s", "t"):
            names, kinds = [f"{number}" for number in range(8)], ["text/plain"] * 8
            manifest.writer.record_added(AddedItems(store, space, 1, names, ["a" * 64] * 8, [1] * 8, kinds))
    manifest.writer.remove_store("gone")
    assert manifest.spaces() == [("here", "s"), ("here", "t")]
    assert manifest.rows().num_rows == 16


def test_rows_that_an_interruption_has_left_are_removed_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_writer, "_REMOVED", 3)
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    manifest, names = Manifest(engine), [f"{number}" for number in range(8)]
    manifest.writer.record_added(AddedItems("gone", "s", 1, names, ["a" * 64] * 8, [1] * 8, ["text/plain"] * 8))
    deletes = list[str]()

    def interrupt(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE"):
            deletes.append(statement)
            if len(deletes) == 2:
                raise InterruptedError

    sa.event.listen(engine, "before_cursor_execute", interrupt)
    with pytest.raises(InterruptedError):
        manifest.writer.remove_store("gone")
    assert manifest.count("gone") == 4
    manifest.writer.remove_store("gone")
    assert manifest.rows().num_rows == 0


def test_what_counts_as_another_good_copy() -> None:
    found, rows, sizes, held, changes = retirement(sa.create_engine("sqlite://", poolclass=sa.StaticPool))
    assert (found.open_changes, changes) == (1, ["here"])
    assert found.named == ["s/A", "s/z", "s/é", "t/é"]
    assert (found.items, found.deletions, found.spaces) == (11, 1, ["s", "t", "x-quarantine"])
    assert {row["store"] for row in rows} == {"here"}
    assert [(size.items, size.bytes) for size in sizes] == [(0, 0)]
    assert held == []


SUM, LATER = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("rows", "verdict", "is_last"),
    [
        ({"one": (SUM, 9)}, None, False),
        ({"one": (SUM, 9)}, CheckVerdict.SUCCESS, False),
        ({"one": (SUM, 9)}, CheckVerdict.ERROR, True),
        ({"one": (SUM, 9)}, CheckVerdict.FAILURE, True),
        ({"one": (None, 11)}, None, True),
        ({"two": (LATER, 11)}, None, True),  # a copy is younger than what it is a copy of
        ({"one": (LATER, 11)}, None, False),  # the source has a later version
        ({"one": (LATER, 9)}, None, True),
        ({"two": (LATER, 11), "three": (LATER, 9)}, None, False),
    ],
)
def test_another_copy_is_good_only_if_it_is_known_to_be(
    rows: dict[str, tuple[str | None, int]], verdict: CheckVerdict | None, *, is_last: bool
) -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    manifest = Manifest(engine)
    for store, (sha256, at) in {"gone": (SUM, 10), **rows}.items():
        manifest.writer.record([ManifestEvent(store, "s", "a", at, sha256)])
    if verdict is not None:
        manifest.writer.apply([CheckResult("one", "s", "a", verdict, "B0", "any", "x", 12, manifest=SUM)])
    policies = Policies({"me": Policy("me", {"s": (Pair("one", "two"), Pair("one", "three"))})})
    guard = ChangeGuard(engine, VirtualClock(), manifest.count)
    parts = (manifest, SpaceStatisticsTable(engine), guard, ["one", "two", "three"], policies)
    found = StoreRetirement(*parts, outbox=AuditOutbox(engine)).find("gone")
    assert (found.last_copies, found.named) == ((1, ["s/a"]) if is_last else (0, []))
