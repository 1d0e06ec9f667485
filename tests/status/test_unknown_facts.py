"""What could not be read is not judged as if it were known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.states import JournalTotals
from millstream.core.clock import MICROSECONDS
from millstream.log import LogSpec, WriterBusyError, open_store
from millstream.log.runtime.writer_refusals import WriterRefusal
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.report import SpaceTally, build_report
from millstream.node import Node
from millstream.settings import AlarmSettings, Settings
from millstream.settings.verdict import VerdictSettings
from millstream.status.node_view import NodeView
from millstream.status.poller import COUNTERS, StatusPoller
from millstream.status.snapshot import JOURNAL, LEDGER, OBSERVER, StatusSnapshot
from millstream.status.verdict.alarms import poller_alarms
from millstream.status.verdict.copies import LatestReports, look_at_copies
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.judge_messages import anchor_issues
from millstream.status.verdict.models import Issue, Unknown, Verdict
from millstream.status.verdict.process import look_at_process

NOW = 100_000 * MICROSECONDS
LONG_AGO = NOW - 7200 * MICROSECONDS


@pytest.mark.parametrize(
    ("unreadable", "kinds"),
    [
        (None, ["ledger-stuck", "observer-behind"]),
        (JOURNAL, ["observer-behind"]),
        (OBSERVER, ["ledger-stuck"]),
        (LEDGER, []),
    ],
)
def test_anchors_are_judged_only_by_what_could_be_read(unreadable: str | None, kinds: list[str]) -> None:
    head = LedgerEntry(anchor_string="x", hash="x", number=5, previous="x", time=LONG_AGO)
    snapshot = StatusSnapshot(
        at=NOW,
        seconds=0.0,
        journal=JournalTotals(accepted=3),
        waiting_since=LONG_AGO,
        head=None if unreadable == LEDGER else head,
        behind_since=LONG_AGO,
        troubles={} if unreadable is None else {unreadable: "it does not answer"},
    )
    facts = Facts(
        at=NOW,
        limits=VerdictSettings(),
        snapshot=snapshot,
        copies=None,
        stores=[],
        depths={},
        unreadable={},
        alarms=AlarmSettings(),
        patience=0,
    )
    assert [one.kind for one in anchor_issues(facts)] == kinds


def test_a_log_that_was_removed_does_not_keep_the_refusals_of_others(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node, open_store(node.logs.store.url) as other:
        node.logs.store._refusals.add(WriterRefusal(log="a-removed-one", producer="batching", at=1, why="it was busy"))
        for name in ("free", "held"):
            with other.log(LogSpec(name)).writer(), pytest.raises(WriterBusyError):
                node.logs.store.log(LogSpec(name)).writer("batching")
        with other.log(LogSpec("held")).writer():
            assert [one.log for one in look_at_process(node).refused] == ["held"]


def test_a_report_is_read_again_until_it_can_be_read(tmp_path: Path) -> None:
    """It is restored in place, so that its folder stays as it was."""
    archive = ReportFolder(tmp_path)
    archive.save(build_report(SpaceTally(), "two", "photos", started_at=1, ended_at=2))
    path = archive.folder("two", "photos") / "000001.json"
    before, place = path.read_bytes(), ("two", "photos")
    path.write_bytes(b"{")
    reports = LatestReports(archive)
    assert reports.latest([place]) == {} and reports.troubles.keys() == {"the report on photos in two"}
    path.write_bytes(before)
    assert reports.latest([place]).keys() == {place} and not reports.troubles


def test_a_file_that_cannot_be_read_hides_no_other_report(tmp_path: Path) -> None:
    archive = ReportFolder(tmp_path)
    for space in ("photos", "videos"):
        archive.save(build_report(SpaceTally(), "two", space, started_at=1, ended_at=2))
    (archive.folder("two", "photos") / "000002.json").mkdir()  # reading it fails for every user
    reports = LatestReports(archive)
    assert reports.latest([("two", "photos"), ("two", "videos")]).keys() == {("two", "videos")}
    assert reports.troubles.keys() == {"the report on photos in two"}


def test_the_trouble_with_a_report_ends_with_the_records_of_its_space(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        reports = LatestReports(node.mill.reports.archive)
        node.mill.reports.archive.save(build_report(SpaceTally(), "retired", "photos", started_at=1, ended_at=2))
        next((tmp_path / "reports" / "retired").rglob("*.json")).write_bytes(b"{")
        assert reports.latest([("retired", "photos")]) == {} and reports.troubles
        copies = look_at_copies(node, reports, NOW)
    assert not copies.troubles and not copies.unreadable


def test_the_alarms_of_the_verdict_are_told_while_the_queues_cannot_be_read() -> None:
    issues = [
        Issue(kind=kind, subject="repair", severity="bad", since=None, what="so", meaning="", todo="", page="", area="")
        for kind in ("database", "dead-letters")
    ]
    down, holders = list[Exception](), list[str]()

    def names() -> list[str]:
        if down:
            raise down[0]
        return ["repair"]

    queues = SimpleNamespace(names=names, holder=lambda name: holders.append(name) or "a worker")
    unknown = list[Unknown]()
    poller = SimpleNamespace(verdict=lambda: Verdict.of(NOW, issues, unknown))
    alarms = poller_alarms(cast("NodeView", SimpleNamespace(queues=queues)), cast("StatusPoller", poller))
    assert [one.kind for one in alarms()] == ["database"], "workers tell of the dead letters of their queue"
    down.append(OSError("the database is gone"))
    assert [one.kind for one in alarms()] == ["database"], "and are taken to do so while nobody can know"
    unknown.append(Unknown(subject=COUNTERS, area="node", since=None, what="so", todo=""))
    down.clear()
    assert [one.kind for one in alarms()] == ["database", "unknown"] and holders == ["repair"]


def test_a_ledger_is_stuck_only_after_an_anchor_was_due() -> None:
    """Where batches are anchored every two hours, an hour without an anchor is none too many."""

    def kinds(every: int, hours: float) -> list[str]:
        at = NOW + round(hours * 3600 * MICROSECONDS)
        snapshot = StatusSnapshot(at=at, seconds=0.0, journal=JournalTotals(accepted=3), waiting_since=NOW)
        facts = Facts(
            at=at, limits=VerdictSettings(), snapshot=snapshot, copies=None, stores=[], depths={}, unreadable={},
            alarms=AlarmSettings(), patience=0, anchor_every=every * 3600 * MICROSECONDS,
        )  # fmt: skip
        return [one.kind for one in anchor_issues(facts)]

    assert kinds(0, 0.9) == [] and kinds(0, 1.1) == ["ledger-stuck"]
    assert kinds(2, 2.9) == [] and kinds(2, 3.1) == ["ledger-stuck"]
