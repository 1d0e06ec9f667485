"""Ways in which a failure could be hidden, or a fault be seen where there is none: changes and clocks in mid-check."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mill_looping import MONTH, TO_2, Bits, Producer, fill, numbered, one_policy, take

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.space_reports import BitReportProcessor, Reporter
from millstream.mill.integrity.sweep import check_space
from millstream.mill.integrity_decision import LAST_ATTEMPT, CheckVerdict, ManifestAction
from millstream.mill.item_ref import ItemRef
from millstream.mill.producers.producer_loop import MOST_FAILURES, PATIENCE, LoopOutcome
from millstream.mill.reports.archive import reports_of, verify_chain
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.report import IntegrityReport, ReportResult, SpaceTally, build_report
from millstream.mill.tasks import BitCheck, BitReport, Duplicate
from millstream.stores.audit import AuditAction, AuditedStore, AuditEvent, AuditOutbox
from millstream.stores.wrapper import StoreCall
from millstream.testing.faulty_store import FaultyStore, UnavailableStore

HOUR = 3600


class Busy(FaultyStore):
    """A store in which somebody acts after a call of *method*, the first *times* times."""

    def __init__(self, store: Any, method: str, act: Callable[[], None], times: int = 1) -> None:
        super().__init__(store)
        self._method, self._act, self._times = method, act, times

    def after(self, call: StoreCall) -> None:
        if call.method == self._method and self._times:
            self._times -= 1
            self._act()


def overwriting(world: Any, times: int) -> None:
    """Somebody writes another version of the item, and records it, each time between the first look and the reading."""
    store, versions = world.stores["1"], iter(range(100))

    def write() -> None:
        world.clock.advance(1)
        info = store.put("s", "a", io.BytesIO(b"version %d" % next(versions)))
        world.record(ItemRef("1", "s", "a"), info.checksum(), size=info.size)

    world.stores["1"] = Busy(store, "info", write, times)


@pytest.mark.parametrize(("times", "row"), [(1, "B8"), (2, "B8"), (50, "B22")])
def test_an_item_that_is_changed_between_the_two_looks_at_it_is_not_sour(world: Any, times: int, row: str) -> None:
    world.put(ItemRef("1", "s", "a"))
    overwriting(world, times)
    result = BitCheckProcessor(BitChecker(world.providers, world.manifest)).process(BitCheck("1", "s", "a"), 1)
    assert (result.summary.split(":")[0], result.checks, result.tasks) == (f"{row} RETRY", (), ())
    world.stores["1"] = world.stores["1"].store
    done = BitCheckProcessor(BitChecker(world.providers, world.manifest)).process(BitCheck("1", "s", "a"), 2)
    assert [check.row for check in done.checks] == ["B1"]


def test_bytes_that_went_wrong_on_the_way_are_read_again_and_are_no_damage(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"))
    reads: list[str] = []
    world.stores["1"] = Rotten(Busy(world.stores["1"], "open", lambda: reads.append("read"), 9), times=1)
    checked = BitChecker(world.providers, world.manifest).check(ItemRef("1", "s", "a"), attempt=1)
    assert (checked.result.row, len(reads)) == ("B1", 2)
    BitChecker(world.providers, world.manifest).check(ItemRef("1", "s", "a"), attempt=1)
    assert len(reads) == 3


def test_an_item_that_rotted_and_vanished_once_it_was_read_stays_sour(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"))
    store = world.stores["1"]
    world.stores["1"] = Rotten(Busy(store, "open", lambda: store.delete("s", "a")))
    checked = BitChecker(world.providers, world.manifest).check(ItemRef("1", "s", "a"), attempt=1)
    assert (checked.result.row, checked.result.verdict) == ("B3", CheckVerdict.FAILURE)


class Rotten(FaultyStore):
    """A store whose bytes are not what they were, the first *times* times that they are read."""

    def __init__(self, store: Any, times: int = 10**6) -> None:
        super().__init__(store)
        self._times = times

    def open(self, space: str, content_id: str, **part: Any) -> Any:
        self._times -= 1
        opened = self.store.open(space, content_id, **part)
        return opened if self._times < 0 else io.BytesIO(b"rot")


class Loop:
    """A loop of checks of the items of a space, and its report."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.bit_log, self.folder = world, BitLog(world.engine), ReportFolder(folder)
        self.reporter = Reporter(self.folder, self.bit_log)
        self.writer = CheckWriter(world.manifest, self.bit_log)
        self.since = world.clock.now()

    @property
    def checker(self) -> BitChecker:
        return BitChecker(self.world.providers, self.world.manifest)

    def check(self, *names: str) -> None:
        self.world.clock.advance(1)
        self.writer.write([self.checker.check(ItemRef("1", "s", name)).result for name in names])

    def check_all(self) -> IntegrityReport:
        """What `millstream mill check` does."""
        since = self.world.clock.now()
        providers, manifest = self.world.providers, self.world.manifest
        tally = check_space(providers, manifest, "1", "s", checker=self.checker, writer=self.writer)
        self.world.clock.advance(1)
        return self.reporter.keep(self.reporter.make(tally, "1", "s", since=since, until=self.world.clock.now()))

    def report(self) -> IntegrityReport:
        self.world.clock.advance(1)
        processor = BitReportProcessor(
            self.world.providers, self.world.manifest, self.bit_log, self.checker, self.reporter
        )
        self.writer.write(processor.process(BitReport("1", "s", self.since, 2), 1).checks)
        latest = self.folder.latest("1", "s")
        assert latest is not None
        return latest


@pytest.fixture
def loop(world: Any, tmp_path: Path) -> Loop:
    for name in "ab":
        world.put(ItemRef("1", "s", name))
    return Loop(world, tmp_path / "reports")


def test_p9_a_check_by_hand_takes_nothing_out_of_the_report_of_a_loop_under_way(world: Any, loop: Loop) -> None:
    loop.check("a")
    world.stores["1"].delete("s", "b")
    assert loop.check_all().result == ReportResult.FAILURE
    world.put(ItemRef("1", "s", "b"))
    assert loop.check_all().result == ReportResult.SUCCESS
    report = loop.report()
    assert (report.result, report.checked) == (ReportResult.SUCCESS, 2)
    loop.since = world.clock.now()
    assert loop.report().result == ReportResult.INCOMPLETE


def test_p9_a_finding_that_only_a_check_by_hand_has_told_of_is_in_the_report_of_the_loop(
    world: Any, loop: Loop
) -> None:
    loop.check("a", "b")
    good = world.stores["1"]
    world.stores["1"] = Rotten(good)
    assert loop.check_all().failed == 2
    world.stores["1"] = good
    assert [finding.row for finding in loop.report().findings] == ["B3", "B3"]


def test_p9_checks_that_a_clock_dated_ahead_hide_nothing_that_was_found_after_it_was_set_back(
    world: Any, loop: Loop
) -> None:
    loop.check("a", "b")
    world.clock.jump(-HOUR)
    assert loop.report().result == ReportResult.SUCCESS
    loop.since = world.clock.now()
    world.stores["1"] = Rotten(world.stores["1"])
    loop.check("a", "b")
    assert [finding.row for finding in loop.report().findings] == ["B3", "B3"]


def test_p9_an_item_whose_check_a_clock_dated_ahead_is_not_left_out_as_checked_lately(
    world: Any, tmp_path: Path
) -> None:
    for name in "ab":
        world.put(ItemRef("1", "s", name))
    checker, writer = BitChecker(world.providers, world.manifest), CheckWriter(world.manifest)
    writer.write([checker.check(ItemRef("1", "s", "a")).result])
    world.clock.jump(365 * 24 * HOUR)
    writer.write([checker.check(ItemRef("1", "s", "b")).result])
    world.clock.jump(-365 * 24 * HOUR + 1)
    bits = Bits(world, tmp_path, skip=60 * 24 * HOUR * 1_000_000)
    assert bits.run().outcome == LoopOutcome.WAITING
    assert [task.content_id for task in take(bits.queue)] == ["b"]


def test_p9_reports_that_are_kept_at_the_same_moment_are_both_kept_and_chained(tmp_path: Path) -> None:
    made = [build_report(SpaceTally(), "1", "s", started_at=at, ended_at=at + 1) for at in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda report: ReportFolder(tmp_path).save(report, ["tsv"]), made))
    folder = ReportFolder(tmp_path)
    assert verify_chain(folder, "1", "s") is not None
    assert sorted(report.started_at for report in reports_of(folder, "1", "s")) == [*range(40)]


def test_a_loop_is_due_again_once_a_clock_that_was_years_ahead_is_right(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(3))
    producer = Producer(world, tmp_path, one_policy())
    world.clock.jump(3 * 365 * 24 * HOUR)
    assert producer.run().outcome == LoopOutcome.DONE
    world.clock.jump(-3 * 365 * 24 * HOUR)
    assert producer.run().outcome == LoopOutcome.DONE
    world.clock.jump(-HOUR)
    assert producer.run().outcome == LoopOutcome.NOT_DUE
    producer.frequency = MONTH // 30
    assert producer.run().outcome == LoopOutcome.DONE


def test_a_space_that_fails_is_given_up_in_time_though_the_clock_was_set_back(world: Any, tmp_path: Path) -> None:
    world.put(ItemRef("1", "s", "a"))
    world.stores["1"] = UnavailableStore(world.stores["1"])
    bits = Bits(world, tmp_path)
    bits.run()
    world.clock.jump(-365 * 24 * HOUR)
    for _ in range(MOST_FAILURES):
        assert bits.run().outcome == LoopOutcome.FAILED
    world.clock.advance(PATIENCE / 1_000_000)
    assert bits.run().outcome == LoopOutcome.DONE
    (report,) = take(bits.reports)
    assert "the listing stopped before its end" in report.note


def test_what_is_copied_and_deleted_after_the_clock_was_set_back_is_recorded(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"), b"old")
    for name in "ab":
        world.put(ItemRef("2", "s", name), b"old")
    world.record(ItemRef("1", "s", "b"), None, deleted=True)
    world.clock.jump(-HOUR)
    sha256 = world.put(ItemRef("1", "s", "a"), b"new", record=False)
    processor = DuplicationProcessor(world.providers, world.manifest)
    for name in "ab":
        world.manifest.writer.record(processor.process(Duplicate(*TO_2_STORES, "s", name), 1).events)
    checker = BitChecker(world.providers, world.manifest)
    assert world.manifest.get("2", "s", "a").sha256 == sha256
    assert [checker.check(ItemRef("2", "s", name), attempt=LAST_ATTEMPT).result.row for name in "ab"] == ["B1", "B21"]


TO_2_STORES = (TO_2.source, TO_2.destination)


def forge(world: Any, store: str) -> None:
    """Somebody puts other bytes, with a checksum that fits them, in the place of a copy; its time is recent."""
    world.stores[store].put("s", "a", io.BytesIO(b"forged"))


def test_p9_b11_a_forged_copy_with_a_checksum_of_its_own_and_a_recent_time_is_found_at_once(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"))
    world.put(ItemRef("2", "s", "a"))
    forge(world, "2")
    checked = BitChecker(world.providers, world.manifest).check(ItemRef("2", "s", "a"))
    assert (checked.result.row, checked.result.verdict) == ("B9", CheckVerdict.FAILURE)
    tally = check_space(world.providers, world.manifest, "2", "s")
    assert (tally.result, tally.failed) == (ReportResult.FAILURE, 1)


@pytest.mark.parametrize("attempt", [1, LAST_ATTEMPT])
def test_b18_an_item_whose_deletion_waits_in_the_outbox_is_not_missing(world: Any, attempt: int) -> None:
    outbox = AuditOutbox(world.engine, world.clock)
    for name in "ab":
        world.put(ItemRef("1", "s", name))
    world.stores["1"].delete("s", "b")  # past the audit
    world.clock.advance(1)
    world.stores["1"] = AuditedStore(world.stores["1"], outbox, "1")
    world.stores["1"].delete("s", "a")
    checker = BitChecker(world.providers, world.manifest, AuditLookup(AuditLog(world.engine), outbox, ["1"]))
    checks = [checker.check(ItemRef("1", "s", name), attempt=attempt).result for name in "ab"]
    assert [(one.row, one.verdict) for one in checks] == [
        ("B21", CheckVerdict.IGNORE),
        ("B17", CheckVerdict.RETRY) if attempt == 1 else ("B18", CheckVerdict.FAILURE),
    ]
    world.put(ItemRef("1", "s", "a"), record=False)
    world.stores["1"].store.delete("s", "a")  # it was added again, and is lost
    assert checker.check(ItemRef("1", "s", "a")).result.row == "B18"


def test_b24_the_tombstone_of_an_item_that_the_manifest_did_not_know_is_not_made_a_live_row(world: Any) -> None:
    world.record(ItemRef("1", "s", "a"), None, deleted=True)
    world.put(ItemRef("1", "s", "a"), record=False)
    world.clock.advance(2 * 24 * HOUR)
    checked = BitChecker(world.providers, world.manifest).check(ItemRef("1", "s", "a"))
    assert (checked.result.row, checked.result.action) == ("B24", ManifestAction.KEEP)


def test_b11_a_change_that_waits_in_the_outbox_is_no_damage_yet(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"))
    outbox = AuditOutbox(world.engine, world.clock)
    lookup = AuditLookup(AuditLog(world.engine), outbox, ["1"])
    forge(world, "1")
    outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "acme", "1", "memory", "s", "a"))
    checked = BitChecker(world.providers, world.manifest, lookup).check(ItemRef("1", "s", "a"))
    assert (checked.result.row, checked.result.verdict) == ("B11", CheckVerdict.IGNORE)
