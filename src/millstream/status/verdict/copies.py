"""The protection of the spaces of a node, from its database, policies and reports; no store is accessed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.adoption.status import OpenWork, ProtectionStatus, SpaceStatus
from millstream.mill.errors import PolicyError, ReportError
from millstream.mill.merge_join import groups
from millstream.mill.policies.repository import Policies, PolicyRepository
from millstream.mill.reports.archive import ReportArchive, ReportHead
from millstream.mill.reports.report import IntegrityReport
from millstream.node import Node
from millstream.stores.protocol import StoreError

POLICIES = "the policies"
"""What they are called among the troubles."""

_REPORTS = 200
"""Reports that are read before the next question whether to stop."""


class CopiesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The protected ``spaces``, the ``policies`` in force, and the last ``reports`` by store and space.

    ``adopted`` has the end of the last run of `protect` (microseconds) by store and space of its source.
    ``troubles`` names what could not be read; ``unreadable`` are the spaces, by store, whose last report is among that.
    """

    policies: Policies = Policies()
    spaces: Sequence[SpaceStatus] = ()
    reports: Mapping[tuple[str, str], IntegrityReport] = {}
    adopted: Mapping[tuple[str, str], int | None] = {}
    troubles: Mapping[str, str] = {}
    unreadable: frozenset[tuple[str, str]] = frozenset()


def report_part(store: str, space: str) -> str:
    """The last report on *space* in *store*, as :attr:`LatestReports.troubles` names it."""
    return f"the report on {space} in {store}"


class LatestReports:
    """The last report of each space, read again only where one was added. Its lists of items are left out.

    One that cannot be read is in ``troubles_by_space`` (the error by store and space), and tried again each time.
    """

    def __init__(self, archive: ReportArchive) -> None:
        self._archive = archive
        self._read: dict[tuple[str, str], tuple[int, IntegrityReport]] = {}
        self.troubles_by_space: dict[tuple[str, str], str] = {}

    @property
    def troubles(self) -> dict[str, str]:
        """The reports that cannot be read, as :func:`report_part` names them, with the errors."""
        return {report_part(*key): why for key, why in self.troubles_by_space.copy().items()}

    def latest(self, spaces: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], IntegrityReport]:
        """The last reports of those of *spaces* (store and name) that have one which can be read."""
        found = {key: self._latest(key, head) for key, head in self._archive.heads(spaces).items()}
        return {key: report for key, report in found.items() if report is not None}

    def forget_others(self, spaces: Collection[tuple[str, str]]) -> None:
        """Forget the reports on all but *spaces*, such as those on a store that was retired, and their troubles."""
        for key in self._read.keys() - spaces:
            self._read.pop(key, None)
        for key in self.troubles_by_space.keys() - spaces:
            self.troubles_by_space.pop(key, None)

    def _latest(self, key: tuple[str, str], head: ReportHead) -> IntegrityReport | None:
        known = self._read.get(key)
        if known is None or known[0] != head.version:
            self._read.pop(key, None)
            try:
                report = head.read()
            except (ReportError, OSError) as error:
                self.troubles_by_space[key] = str(error)
                return None
            self.troubles_by_space.pop(key, None)
            if report is None:
                return None
            known = self._read[key] = head.version, _without_items(report)
        return known[1]


class LookStoppedError(Exception):
    """A look was stopped before it was complete."""


def look_at_copies(
    node: Node, reports: LatestReports, now: int, *, stopping: Callable[[], bool] = lambda: False
) -> CopiesStatus:
    """Look once at *now* (microseconds).

    Raises :class:`LookStoppedError` if *stopping* returns True, which is asked before each space and some reports.
    """

    def proceed() -> bool:
        if stopping():
            raise LookStoppedError
        return True

    def latest(keys: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], IntegrityReport]:
        found: dict[tuple[str, str], IntegrityReport] = {}
        for some in groups(keys, _REPORTS):
            proceed()
            found |= reports.latest(some)
        return found

    troubles = dict[str, str]()
    policies = Policies()
    try:
        policies = node.policies.required(PolicyRepository(node.policies.location).load())
    except (PolicyError, StoreError) as error:
        troubles[POLICIES] = str(error)
    adopted = {(one.store, one.space): one.ended_at for one in AdoptionCatalog(node.databases.own).spaces()}
    work = OpenWork(holds=node.stores.change_guard.pending())
    statuses = ProtectionStatus(node.databases.own, policies, work, latest, now, names=False).spaces()
    spaces = [one for one in statuses if proceed()]
    where = {(one.store, one.space) for one in spaces} | {(c.store, one.space) for one in spaces for c in one.copies}
    where |= set(node.mill.reports.current_spaces())
    found = latest(sorted(where))
    reports.forget_others(where)
    return CopiesStatus(
        policies=policies,
        spaces=spaces,
        reports=found,
        adopted=adopted,
        troubles=troubles | reports.troubles,
        unreadable=frozenset(reports.troubles_by_space),
    )


def _without_items(report: IntegrityReport) -> IntegrityReport:
    strays, absent = (msgspec.structs.replace(some, first=()) for some in (report.strays, report.absent))
    return msgspec.structs.replace(report, findings=(), repaired=(), strays=strays, absent=absent)
