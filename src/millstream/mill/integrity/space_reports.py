"""Making the report on a space out of the bit log, with nothing left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.checker import BitChecker, CheckedItem
from millstream.mill.integrity.source_comparison import SourceComparison
from millstream.mill.integrity.sweep import is_lately_verified, listed_or_known
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, Manifest, ManifestRow
from millstream.mill.manifest_table import last_check
from millstream.mill.merge_join import outer_join
from millstream.mill.notices.receivers import BadReport, NoticeReceiver, NoticeSender
from millstream.mill.reports.archive import ReportArchive
from millstream.mill.reports.report import (
    AdoptedShare,
    IntegrityReport,
    ReportResult,
    SpaceTally,
    build_report,
    compared,
    coverage_text,
    report_lines,
    tsv_lines,
)
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import BitReport, NotifyReport, QueueName, Task
from millstream.stores.protocol import Entry, StoreError

Lines = Iterable[CheckResult]

Anchor = Callable[[IntegrityReport, int | None], object]
"""Writes down in a ledger that this report was made, so that not even the last one can be changed unseen. No entry up
to the number that is given has this report; with None it may have one already."""


MOST_TEXT = 8_000
"""Characters of a report that people are told, so that a task has room for them."""

LATELY = "– lately"
"""The kind of items that were not checked again, since they were found good a short while ago."""

NEW = "– new"
"""The kind of items that were recorded after the check began: the next one checks them, so they are not listed."""


class Reporter:
    """Keeps the reports of an *account* in *archive*, with the rows of *bit_log* as their table of text.

    Each is handed to *anchor* once it is kept; a report that was kept and not anchored, because the process died in
    between, is anchored before the next one of its space is kept. *last_entry* is the number of the last entry.
    *kinds* are the kinds of stores by id (``file``, ``s3``), for the table. A report on a copy says what *comparison*
    finds; *adopted* says how much of a store's space rests on adoption.
    """

    def __init__(
        self,
        archive: ReportArchive,
        bit_log: BitLog,
        *,
        account: str = "local",
        anchor: Anchor | None = None,
        last_entry: Callable[[], int] = lambda: 0,
        kinds: Mapping[str, str] | None = None,
        comparison: SourceComparison | None = None,
        adopted: Callable[[str, str], AdoptedShare] | None = None,
    ) -> None:
        self._archive, self._bit_log, self._account = archive, bit_log, account
        self._anchor, self._last_entry = anchor, last_entry
        self._kinds, self._comparison, self._adopted = kinds or {}, comparison, adopted

    def make(self, tally: SpaceTally, store: str, space: str, *, since: int, until: int) -> IntegrityReport:
        """The report of *tally*, of checks from *since* to *until* (microseconds)."""
        return build_report(tally, store, space, started_at=since, ended_at=until, account=self._account)

    def keep(self, made: IntegrityReport, more: Lines = ()) -> IntegrityReport:
        """Keep the report *made*, chained to the one before; the bit log forgets what it speaks of.

        *more* are results that are not in the bit log, in the order of the ids. A report that began at the same moment
        and is there already, because the process died before it could record that, is not kept twice.
        """
        store, space, since = made.store, made.space, made.started_at
        report = self._archive.latest(store, space)
        if report is not None and self._anchor is not None:
            self._anchor(report, None)
        if report is None or report.started_at != since:
            strays = frozenset[str]()
            if self._comparison is not None:
                differences = self._comparison.compare(store, space, since=since)
                made, strays = compared(made, differences), frozenset(differences.strays)
            if self._adopted is not None:
                made = msgspec.structs.replace(made, adopted=self._adopted(store, space))
            results = _merged(self._bit_log.results(store, space, since=since), more)
            kind = self._kinds.get(store, "")
            lines = tsv_lines(results, account=self._account, store_type=kind, strays=strays)
            after = self._last_entry()  # before it is kept: from then on another process may anchor it
            report = self._archive.save(made, lines)
            if self._anchor is not None:
                self._anchor(report, after)
        self._bit_log.purge(store, space, until=report.ended_at)
        return report


class BitReportProcessor:
    """Takes :class:`BitReport` tasks to their end (seed document, "Looping Bit Task Producer").

    The listing and the manifest say what there is to check, the bit log what was checked. What is not listed any more
    is examined now, and so is every finding that was made under another manifest row than there is now, or at a time
    that has not come (a clock was set back); unchecked items keep the report from saying SUCCESS. Items that the
    producer left out because they were found good lately are counted as :data:`LATELY`, and have no line: the report on
    that check has it. So it is with those that another report was made on since the loop began. What was recorded
    since then is :data:`NEW`. With *notify* people are told of a report that does not say SUCCESS.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        bit_log: BitLog,
        checker: BitChecker,
        reporter: Reporter,
        *,
        notify: bool = False,
    ) -> None:
        self._providers, self._manifest, self._bit_log = providers, manifest, bit_log
        self._checker, self._reporter, self._notify = checker, reporter, notify

    def process(self, task: BitReport, attempt: int) -> TaskResult:  # noqa: ARG002
        """Make the report, and check what only now turns out to need it."""
        tally, late = SpaceTally(), list[CheckedItem]()
        until = self._providers.clock.now()  # what is found from now on is for the next report
        if task.note:
            tally.fail(task.note)
        try:
            for content_id, entry, row, found in self._joined(task):
                place = ItemRef(task.store, task.space, content_id)
                if found is None and row is not None and _is_good(task, entry, row, until):
                    tally.count(CheckVerdict.SUCCESS, LATELY)
                    continue
                if found is None and entry is not None and _is_new(task, row, until):
                    tally.kinds[NEW] += 1
                    continue
                if found is None and entry is not None and not _is_unrecorded(task, entry, row):
                    tally.add([_noted(task, row) or self._unchecked(place)])
                    continue
                if found is not None and found.checked_at <= until and not _is_outdated(found, row):
                    tally.add([found])
                    continue
                late.append(self._checker.check(place))
                tally.add([late[-1].result])
        except StoreError as error:
            tally.fail(f"the listing stopped before its end: {error}")
        more = [one.result for one in late]
        made = self._reporter.make(tally, task.store, task.space, since=task.since, until=until)
        report = self._reporter.keep(made, more)
        return TaskResult(
            f"{task.store}/{task.space}: {report.result.value}, {coverage_text(report)}",
            checks=tuple(more),
            tasks=(*(one.task for one in late if one.task), *self._notices(report)),
            missed=tuple(one.missed for one in late if one.missed),
        )

    def _notices(self, report: IntegrityReport) -> Iterator[tuple[QueueName, Task]]:
        if self._notify and report.result != ReportResult.SUCCESS:
            text = "\n".join(report_lines(report))[:MOST_TEXT]
            yield QueueName.BIT_REPORT, NotifyReport(report.store, report.space, report.result.value, text)

    def _joined(self, task: BitReport) -> Iterator[tuple[str, Entry | None, ManifestRow | None, CheckResult | None]]:
        """Everything that is listed or should be there, with what was found."""
        store, space = task.store, task.space
        there = listed_or_known(self._providers, self._manifest, store, space, self._checker.audit_lookup)
        for content_id, known, found in outer_join(there, self._bit_log.results(store, space, since=task.since)):
            if known is not None:
                yield content_id, known.entry, known.row, found

    def _unchecked(self, place: ItemRef) -> CheckResult:
        now, detail = self._providers.clock.now(), "listed, and no check of it has ended"
        return CheckResult(
            place.store, place.space, place.content_id, CheckVerdict.ERROR, "–", "unchecked", detail, checked_at=now
        )


class NotifyReportProcessor:
    """Takes :class:`NotifyReport` tasks to their end: every one of *receivers* is told, or the task fails."""

    def __init__(self, receivers: Sequence[NoticeReceiver]) -> None:
        self._sender = NoticeSender(receivers)

    def process(self, task: NotifyReport, attempt: int) -> TaskResult:
        """Raises :class:`~millstream.mill.notices.receivers.NoticeError` if a receiver was not notified."""
        notice = BadReport(task.store, task.space, task.result, task.text)
        told = self._sender.tell(notice, attempt)
        return TaskResult(f"{told} receivers notified of the report on {task.store}/{task.space}")


def _is_good(task: BitReport, entry: Entry | None, row: ManifestRow, until: int) -> bool:
    return task.good_since is not None and is_lately_verified(entry, row, task.good_since, until)


def _is_new(task: BitReport, row: ManifestRow | None, until: int) -> bool:
    """Whether the item was recorded as it is after the check began, and was not checked since."""
    return row is not None and task.since < row.modified <= until and (row.checked_at or 0) < row.modified


def _is_unrecorded(task: BitReport, entry: Entry, row: ManifestRow | None) -> bool:
    """Whether the item was written after the check began, and is not recorded yet."""
    return row is None and entry.modified is not None and entry.modified > task.since


def _noted(task: BitReport, row: ManifestRow | None) -> CheckResult | None:
    """The check of an item since the loop began of which another report, made meanwhile, has taken the line."""
    noted = last_check(row) if row is not None else None
    return noted if noted is not None and noted.checked_at >= task.since else None


def _is_outdated(found: CheckResult, row: ManifestRow | None) -> bool:
    """Whether a finding was made under another manifest row than there is now."""
    if found.verdict in (CheckVerdict.SUCCESS, CheckVerdict.IGNORE):
        return False
    return row is not None and (row.deleted or (row.sha256 != found.manifest and row.modified > found.checked_at))


def _merged(logged: Iterator[CheckResult], late: Lines) -> Iterator[CheckResult]:
    """Both, in the order of the ids; of an item that is in both the late one."""
    for _, early, later in outer_join(logged, late):
        result = later or early
        if result is not None:
            yield result
