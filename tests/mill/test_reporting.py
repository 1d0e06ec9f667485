"""Reports out of the bit log: full coverage or no success, whatever happened between the checks and the report."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import LedgerEntry, LogLedger
from millstream.core.clock import VirtualClock
from millstream.log.errors import LogError, StorageUnavailableError
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.space_reports import BitReportProcessor, Reporter
from millstream.mill.item_ref import ItemRef
from millstream.mill.reports.archive import reports_of
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.page import age_text, overview, page
from millstream.mill.reports.report import IntegrityReport, ReportResult, SpaceTally, coverage_text
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import BitCheck, BitReport, QueueName, encode_task
from millstream.mill.workers.manager import WorkerManager
from millstream.mill.workers.result_sink import ResultSink
from millstream.node import Node
from millstream.node.reports import REPORT_LEDGER, report_anchor
from millstream.settings import Settings
from millstream.testing.faulty_store import UnavailableStore


class Desk:
    """A world with three items in store "1", their checks on a queue, and reports of them."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.bit_log, self.folder = world, BitLog(world.engine), ReportFolder(folder)
        self.anchored: list[IntegrityReport] = []
        self.sought_after: list[int | None] = []
        self.dies_before_it_anchors = False
        for name in "abc":
            world.put(ItemRef("1", "s", name), name.encode() * 10)
            world.put(ItemRef("2", "s", name), name.encode() * 10)
        self.since = world.clock.now()
        self.good_since: int | None = None

    def work(self, *tasks: Any) -> None:
        providers, manifest = self.world.providers, self.world.manifest
        checker = BitChecker(providers, manifest)
        reporter = Reporter(self.folder, self.bit_log, anchor=self.anchor, last_entry=lambda: 40 + len(self.anchored))
        registry = ProcessorRegistry(
            {
                BitCheck: BitCheckProcessor(checker),
                BitReport: BitReportProcessor(providers, manifest, self.bit_log, checker, reporter),
            }
        )
        queues = {name: self.world.queue(name) for name in QueueName}
        queues[QueueName.BIT_INTEGRITY].put([encode_task(task) for task in tasks])
        sink = ResultSink(manifest, queues, bit_log=self.bit_log)
        WorkerManager([queues[QueueName.BIT_INTEGRITY]], registry, sink, self.world.clock).run_until_drained()

    def anchor(self, report: IntegrityReport, after: int | None) -> None:
        if report.sha256 in [one.sha256 for one in self.anchored]:
            return
        if self.dies_before_it_anchors:
            raise LogError("the process is killed")
        self.anchored.append(report)
        self.sought_after.append(after)

    def check(self, *names: str) -> None:
        self.work(*[BitCheck("1", "s", name) for name in names])
        self.world.clock.advance(1)

    def report(self, note: str = "") -> IntegrityReport:
        self.work(BitReport("1", "s", self.since, 3, note, good_since=self.good_since))
        latest = self.folder.latest("1", "s")
        assert latest is not None
        return latest


@pytest.fixture
def desk(world: Any, tmp_path: Path) -> Desk:
    return Desk(world, tmp_path / "reports")


def rows(report: IntegrityReport) -> dict[str, str]:
    return {finding.content_id: f"{finding.verdict} {finding.row}" for finding in report.findings}


def test_p9_a_space_that_was_checked_whole_is_a_success_and_the_report_is_anchored_and_the_log_empty(
    desk: Desk,
) -> None:
    desk.check(*"abc")
    report = desk.report()
    assert (report.result, report.listed, report.checked, report.coverage) == (ReportResult.SUCCESS, 3, 3, 1.0)
    assert [one.sha256 for one in desk.anchored] == [report.sha256]
    assert desk.bit_log.spaces() == []
    lines = next(desk.folder.folder("1", "s").glob("*.tsv")).read_text().splitlines()
    assert [line.split("\t")[5:7] for line in lines[1:]] == [["a", "SUCCESS"], ["b", "SUCCESS"], ["c", "SUCCESS"]]


def test_the_entry_of_a_new_report_is_sought_only_where_it_can_be(desk: Desk) -> None:
    desk.check(*"abc")
    desk.report()
    desk.since = desk.world.clock.now()
    desk.check(*"abc")
    desk.dies_before_it_anchors = True
    kept = desk.report()
    assert (len(desk.anchored), desk.sought_after) == (1, [40])
    desk.dies_before_it_anchors = False
    assert desk.report() == kept == desk.anchored[-1]
    assert desk.sought_after == [40, None], "it was kept by another process, which may have anchored it"


def test_p9_a_report_whose_process_died_before_it_was_anchored_is_anchored_before_the_next_one(desk: Desk) -> None:
    desk.check(*"abc")
    desk.dies_before_it_anchors = True
    first = desk.report()
    desk.dies_before_it_anchors = False
    desk.since = desk.world.clock.now()
    desk.check(*"abc")
    second = desk.report()
    assert [one.sha256 for one in desk.anchored] == [first.sha256, second.sha256]
    assert len(list(reports_of(desk.folder, "1", "s"))) == 2


def test_a_node_anchors_a_new_report_without_reading_the_ledger_of_before_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought, find = list[int](), LogLedger.find

    def noted(ledger: LogLedger, anchor_string: str, *, after: int = 0) -> LedgerEntry | None:
        sought.append(after)
        return find(ledger, anchor_string, after=after)

    monkeypatch.setattr(LogLedger, "find", noted)
    clock = VirtualClock()
    with Node.open(Settings(data=str(tmp_path)), clock, create=True) as node:
        reporter = node.mill.reports.reporter
        for _ in range(8):
            clock.advance(0.4 * 24 * 3600)
            now = clock.now()
            reporter.keep(reporter.make(SpaceTally(), "main", "letters", since=now, until=now))
        assert node.mill.reports.ledger.last_number == 8
    assert sought[:2] == [0, 0]
    assert [number - after for number, after in enumerate(sought[2::2], start=1)] == [0] * 7
    assert max(number - after for number, after in enumerate(sought[1::2], start=1)) <= 5


def test_a_report_is_kept_while_the_log_of_its_ledger_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(LogLedger):
        @property
        def last_number(self) -> int:
            raise StorageUnavailableError

        def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
            raise StorageUnavailableError

    clock = VirtualClock()
    with Node.open(Settings(data=str(tmp_path)), clock, create=True) as node:
        reports = node.mill.reports
        reporter = reports.reporter
        made = reporter.make(SpaceTally(), "main", "letters", since=1, until=2)
        with monkeypatch.context() as patch, pytest.raises(StorageUnavailableError):
            patch.setattr(reports, "ledger", Silent(node.logs.store, clock, name=REPORT_LEDGER))
            reporter.keep(made)
        kept = reports.archive.latest("main", "letters")
        assert kept is not None
        assert reporter.keep(made) == kept
        assert list(reports.ledger_entries()) == [report_anchor(kept)]


def test_the_anchor_of_a_report_waits_for_another_process_that_writes_to_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, append = VirtualClock(), LogLedger.append
    with Node.open(Settings(data=str(tmp_path)), clock, create=True) as node:
        other = LogLedger(node.logs.store, clock, name=REPORT_LEDGER)

        def while_held(ledger: LogLedger, anchor_string: str, *, after: int = 0) -> LedgerEntry:
            with other.exclusive() if clock.monotonic() < 5.0 else contextlib.nullcontext():
                return append(ledger, anchor_string, after=after)

        monkeypatch.setattr(LogLedger, "append", while_held)
        reporter = node.mill.reports.reporter
        reporter.keep(reporter.make(SpaceTally(), "main", "letters", since=1, until=2))
        assert node.mill.reports.ledger.last_number == 1


def test_p9_what_nobody_checked_keeps_a_report_from_success(desk: Desk) -> None:
    desk.check(*"ab")
    report = desk.report()
    assert (report.result, rows(report)) == (ReportResult.INCOMPLETE, {"c": "ERROR –"})
    assert report.coverage == pytest.approx(2 / 3)


def test_p9_what_was_recorded_after_the_check_began_is_for_the_next_one_and_nothing_else_is(desk: Desk) -> None:
    desk.check(*"abc")
    desk.world.put(ItemRef("1", "s", "d"), b"new")
    desk.world.put(ItemRef("1", "s", "e"), b"new, and not recorded yet", record=False)
    desk.world.put(ItemRef("1", "s", "f"), b"recorded, and lost since")
    desk.world.stores["1"].delete("s", "f")
    desk.world.clock.advance(1)
    report = desk.report()
    assert (report.kinds["– new"], rows(report)) == (1, {"f": "FAILURE B18"})
    assert (report.listed, report.checked, report.explained) == (5, 4, 1)
    desk.world.clock.advance(1)
    desk.since = desk.world.clock.now()
    desk.check(*"abcef")
    assert (desk.report().result, rows(desk.report())["d"]) == (ReportResult.FAILURE, "ERROR –")


def test_p9_a_space_that_was_empty_when_the_check_began_has_no_coverage(desk: Desk) -> None:
    for name in "abc":
        desk.world.stores["1"].delete("s", name)
        desk.world.record(ItemRef("1", "s", name), None, deleted=True)
    desk.world.clock.advance(1)
    desk.since = desk.world.clock.now()
    desk.world.clock.advance(1)
    desk.world.put(ItemRef("1", "s", "d"), b"new")
    report = desk.report()
    assert (report.result, report.listed, report.kinds) == (ReportResult.SUCCESS, 0, {"– new": 1})
    assert coverage_text(report) == "coverage unknown: all was recorded after the check began"


def test_p9_what_was_found_good_lately_counts_as_checked_only_where_it_was_left_out_for_that(desk: Desk) -> None:
    desk.check(*"abc")
    first = desk.report()
    desk.since, desk.good_since = desk.world.clock.now(), first.ended_at - 60 * 1_000_000
    desk.world.stores["1"].put("s", "b", io.BytesIO(b"behind everybody's back"))
    desk.check("c")
    report = desk.report()
    assert (report.kinds["– lately"], rows(report)) == (1, {"b": "ERROR –"})
    assert (report.result, report.listed, report.checked) == (ReportResult.INCOMPLETE, 3, 2)
    desk.since, desk.good_since = desk.world.clock.now(), None
    assert rows(desk.report()) == dict.fromkeys("abc", "ERROR –")


def test_p9_a_listing_that_broke_off_keeps_a_report_from_success(desk: Desk) -> None:
    desk.check(*"abc")
    report = desk.report("the listing stopped before its end")
    assert (report.result, report.notes) == (ReportResult.INCOMPLETE, ["the listing stopped before its end"])
    desk.since = desk.world.clock.now()
    desk.check(*"abc")
    desk.world.stores["1"] = UnavailableStore(desk.world.stores["1"], when=lambda call: call.method == "entries")
    assert desk.report().result == ReportResult.INCOMPLETE


def test_what_is_not_listed_any_more_is_found_by_the_report(desk: Desk) -> None:
    desk.world.stores["1"].delete("s", "b")
    desk.check(*"ac")
    assert rows(desk.report()) == {"b": "FAILURE B18"}
    assert desk.world.manifest.get("1", "s", "b").missing
    assert desk.world.queue(QueueName.REPAIR).depth().ready == 1


def test_a_finding_that_a_recorded_change_has_overtaken_is_looked_at_again(desk: Desk) -> None:
    for name in "ab":
        desk.world.stores["1"].delete("s", name)
    desk.world.clock.advance(2)
    desk.work(*[BitCheck("1", "s", name) for name in "abc"])
    assert {one.row for one in desk.bit_log.results("1", "s")} == {"B1", "B18"}
    desk.world.clock.advance(1)
    desk.world.record(ItemRef("1", "s", "a"), None, deleted=True)
    desk.world.put(ItemRef("1", "s", "b"), b"new")
    report = desk.report()
    assert (report.result, report.listed, rows(report)) == (ReportResult.SUCCESS, 2, {})


def test_a_report_that_was_kept_before_its_worker_died_is_not_kept_twice(desk: Desk) -> None:
    desk.check(*"abc")
    first = desk.report()
    assert desk.report() == first
    assert len(list(reports_of(desk.folder, "1", "s"))) == 1
    desk.since = desk.world.clock.now()
    desk.check(*"abc")
    assert desk.report().previous == first.sha256


def test_a_page_says_what_the_report_says_and_runs_nothing(desk: Desk) -> None:
    evil = "<script>alert(1)</script>"
    desk.world.put(ItemRef("1", "s", evil), b"x" * 9)
    desk.world.stores["1"].delete("s", evil)
    desk.check(*"abc")
    report = desk.report()
    text = "".join(page(report))
    assert text == next(desk.folder.folder("1", "s").glob("*.html")).read_text()
    for expected in ("FAILURE", "100.0%", report.sha256, "B18 missing", "&lt;script&gt;"):
        assert expected in text
    assert "<script" not in text
    day = 24 * 3600 * 1_000_000
    listed = "".join(overview([("1", "s"), ("2", "<t>")], [report, None], report.ended_at + 3 * day))
    assert "3 days" in listed and "NEVER" in listed and "&lt;t&gt;" in listed


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 days")]
)
def test_an_age_is_told_in_its_largest_unit(seconds: int, text: str) -> None:
    assert age_text(seconds * 1_000_000) == text


def test_the_overview_and_the_folder_name_the_same_spaces(desk: Desk, new_world: Callable[..., Any]) -> None:
    assert desk.folder.spaces() == []
    desk.check(*"abc")
    desk.report()
    assert desk.folder.spaces() == [("1", "s")]
