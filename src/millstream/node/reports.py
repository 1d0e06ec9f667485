"""Integrity reports of a node, and the ledger that says that they were made."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy as sa

from millstream.anchoring import LedgerEntry, LogLedger
from millstream.anchoring.cut_manifest import anchor_string
from millstream.anchoring.ledger import append_when_free
from millstream.core.amounts import counted
from millstream.core.cached import locked_cached_property
from millstream.core.cid import cid_of
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import MillstreamError
from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.adoption.coverage import adopted_share
from millstream.mill.errors import ReportError
from millstream.mill.integrity.source_comparison import SourceComparison
from millstream.mill.integrity.space_reports import Reporter
from millstream.mill.policies.repository import CachedPolicies, PolicyRepository
from millstream.mill.reports.archive import ReportArchive, decode_report
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.member_reports import new_reports, take_over
from millstream.mill.reports.report import IntegrityReport, encode_report
from millstream.mill.reports.table import ReportTable
from millstream.node.anchoring import open_cas
from millstream.node.checks import ChecksPart
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.ledger_trees import LedgerTreesPart
from millstream.node.logs import LogsPart
from millstream.node.policies import PoliciesPart
from millstream.node.stores import StoresPart
from millstream.settings import Settings

_log = logging.getLogger(__name__)

FOLDER = "reports"
"""The path of the reports in the folder of a node."""

REPORT_LEDGER = "mill.ledger"
"""The log of the ledger of integrity reports."""

_DAY = 24 * 3600 * MICROSECONDS
"""More than the clocks of a node's processes differ."""


class ReportsPart:
    """Makes reports, keeps them and anchors them."""

    def __init__(
        self,
        context: NodeContext,
        *,
        databases: DatabasesPart,
        logs: LogsPart,
        stores: StoresPart,
        policies: PoliciesPart,
        checks: ChecksPart,
        trees: LedgerTreesPart,
    ) -> None:
        self._context = context
        self._databases = databases
        self._policies = policies
        self._logs = logs
        self._stores = stores
        self._checks = checks
        self._trees = trees

    @locked_cached_property
    def archive(self) -> ReportArchive:
        """The integrity reports, each chained to the one before: in the folder, or in the database on a server and
        content-addressed storage."""
        settings = self._context.settings
        archive = open_reports(settings, self._databases.own if settings.node.database else None)
        if isinstance(archive, ReportTable) and not self._context.reads:
            self._take_over(settings.folder / FOLDER, archive)
        return archive

    def folder_to_take_over(self, anchors: Container[str]) -> Path | None:
        """The folder with reports of an early release with one of *anchors* that a process which writes would add to
        the database on a server; None where there are none."""
        folder, archive = self._context.settings.folder / FOLDER, self.archive
        if not isinstance(archive, ReportTable):
            return None
        is_one = any(anchor_string(1, cid_of(one.data)) in anchors for one in new_reports(folder, archive))
        return folder if is_one else None

    def _take_over(self, folder: Path, table: ReportTable) -> None:
        """Let *table* have the reports that an early release wrote to *folder*; tried again at the next start."""

        @functools.cache  # the ledger is read only where there is something new
        def anchored() -> frozenset[str]:
            return frozenset(entry.anchor_string for entry in self.ledger.entries())

        try:
            count = take_over(folder, table, lambda cid: anchor_string(1, cid) in anchored())
        except (MillstreamError, OSError) as error:
            _log.warning("the reports in %s cannot be taken over into the database: %s", folder, error)
        else:
            if count:
                _log.info("%s taken over into the database, from %s", counted(count, "report"), folder)

    def current_spaces(self) -> Sequence[tuple[str, str]]:
        """Every (store, space) that has a report, sorted; without removed stores of which nothing is recorded."""
        stores, known = self._context.settings.store_urls, dict[str, bool]()
        for store, _ in (places := self.archive.spaces()):
            if store not in known:
                known[store] = store in stores or self._stores.manifest.has_items(store)
        return [place for place in places if known[place[0]]]

    @locked_cached_property
    def reporter(self) -> Reporter:
        """Makes reports, and writes down in a ledger that they were made."""
        return Reporter(
            self.archive,
            self._checks.bit_log,
            account=self._context.settings.mill.account,
            anchor=self.anchor,
            last_entry=self._last_entry,
            kinds={name: urlsplit(store.url).scheme for name, store in self._stores.providers.items()},
            comparison=self.comparison,
            adopted=functools.partial(adopted_share, AdoptionCatalog(self._databases.own)),
        )

    @locked_cached_property
    def comparison(self) -> SourceComparison:
        """Says how copies differ from their sources by item."""
        return SourceComparison(
            self._stores.providers,
            self._stores.manifest,
            self._checks.bit_log,
            policies=CachedPolicies(PolicyRepository(self._policies.location), self._context.clock),
            outbox=self._stores.outbox,
        )

    @locked_cached_property
    def ledger(self) -> LogLedger:
        """The ledger of the integrity reports."""
        ledger = LogLedger(self._logs.store, self._context.clock, name=REPORT_LEDGER, create=not self._context.reads)
        return self._trees.attach("reports", ledger)

    def _last_entry(self) -> int:
        """The number of the last entry of the ledger; 0 where its log does not answer: a report is kept even so, and
        is then looked for in the whole ledger."""
        try:
            return self.ledger.last_number
        except MillstreamError as error:
            _log.warning("the ledger of the reports cannot be read now: %s", error)
            return 0

    def anchor(self, report: IntegrityReport, after: int | None = None) -> LedgerEntry:
        """The ledger's entry for *report*, made if need be: ``1.<CID of its canonical JSON>``.

        It is looked for above number *after*, where that is not known from a day before the report ended: to read the
        whole ledger takes longer with each report. Where the ledger lacks it, it may lack those before it as well, as
        when its log was restored from a backup: these get their entries first. Raises a ``BusyError`` while another
        process writes to the ledger for long.
        """
        anchor = report_anchor(report)
        if after is None:
            after = self._entry_before(report)
            if (entry := self.ledger.find(anchor, after=after)) is not None:
                return entry
            self._anchor_earlier(report)
        return append_when_free(self.ledger, anchor, self._context.clock, after=after)

    def _anchor_earlier(self, report: IntegrityReport) -> None:
        """Anchor the reports of the space before *report* that the ledger lacks, up to the last one that it has."""
        try:
            chain = [decode_report(stored) for stored in self.archive.stored(report.store, report.space)]
        except ReportError as error:  # `mill report --verify` names it as well; new reports are made all the same
            _log.warning("it is not known whether earlier reports are in the ledger: %s", error)
            return
        lacking, own = list[tuple[str, int]](), report_anchor(report)
        for earlier in reversed(list(itertools.takewhile(lambda one: report_anchor(one) != own, chain))):
            anchor, after = report_anchor(earlier), self._entry_before(earlier)
            if self.ledger.find(anchor, after=after) is not None:
                break
            lacking.append((anchor, after))
        for anchor, after in reversed(lacking):
            append_when_free(self.ledger, anchor, self._context.clock, after=after)

    def _entry_before(self, report: IntegrityReport) -> int:
        """The number of an entry that was made a day before *report* ended, or earlier; 0 if there may be none."""
        if report.ended_at > self._context.clock.now():
            return 0  # a clock was wrong
        number, step = self.ledger.last_number, 1
        while (entry := self.ledger.entry(number)) is not None and entry.time > report.ended_at - _DAY:
            number, step = number - step, 2 * step
        return max(0, number)

    def ledger_entries(self) -> Mapping[str, LedgerEntry]:
        """The entries of the ledger by their anchors (:func:`report_anchor`), oldest first; its chain is checked.

        A report is kept before its entry is made, so reports that are read afterwards have those of all entries. Raises
        :class:`LedgerError`.
        """
        self.ledger.verify()
        return {entry.anchor_string: entry for entry in self.ledger.entries()}


def open_reports(settings: Settings, server: sa.Engine | None) -> ReportArchive:
    """The reports of a node with *settings* whose tables are on *server*, or in its folder."""
    if server is None:
        return ReportFolder(settings.folder / FOLDER)
    return ReportTable(server, lambda: open_cas(settings))


def report_anchor(report: IntegrityReport) -> str:
    """The anchor of *report* in the ledger: ``1.<CID of its canonical JSON>``."""
    return anchor_string(1, cid_of(encode_report(report)))
