"""The protection of the spaces of a node, from its database, policies and reports; no store is accessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.adoption.status import OpenWork, ProtectionStatus, SpaceStatus
from millstream.mill.errors import PolicyError, ReportError
from millstream.mill.policies.repository import Policies, PolicyRepository
from millstream.mill.reports.archive import ReportArchive
from millstream.mill.reports.report import IntegrityReport
from millstream.node import Node
from millstream.stores.protocol import StoreError

POLICIES = "the policies"
"""What they are called among the troubles."""


class CopiesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The protected ``spaces``, the ``policies`` in force, and the last ``reports`` by store and space.

    ``adopted`` has the end of the last run of `protect` (microseconds) by store and space of its source.
    ``troubles`` names what could not be read.
    """

    policies: Policies = Policies()
    spaces: Sequence[SpaceStatus] = ()
    reports: Mapping[tuple[str, str], IntegrityReport] = {}
    adopted: Mapping[tuple[str, str], int | None] = {}
    troubles: Mapping[str, str] = {}


class LatestReports:
    """The last report of each space, read again only where one was added. Its lists of items are left out."""

    def __init__(self, archive: ReportArchive) -> None:
        self._archive = archive
        self._read: dict[tuple[str, str], tuple[int, IntegrityReport | None]] = {}
        self.troubles: dict[str, str] = {}

    def latest(self, store: str, space: str) -> IntegrityReport | None:
        """The last report on *space* in *store*; None where there is none, or where it cannot be read."""
        changed = self._archive.version(store, space)
        if changed is None:
            return None
        known = self._read.get((store, space))
        if known is None or known[0] != changed:
            report = None
            try:
                report = self._archive.latest(store, space)
            except ReportError as error:
                self.troubles[f"the report on {space} in {store}"] = str(error)
            else:
                self.troubles.pop(f"the report on {space} in {store}", None)
            known = self._read[store, space] = changed, None if report is None else _without_items(report)
        return known[1]


class LookStoppedError(Exception):
    """A look was stopped before it was complete."""


def look_at_copies(
    node: Node, reports: LatestReports, now: int, *, stopping: Callable[[], bool] = lambda: False
) -> CopiesStatus:
    """Look once at *now* (microseconds).

    Raises :class:`LookStoppedError` if *stopping* returns True, which is asked before each space and each report: on a
    node with thousands of spaces a look takes more than a minute.
    """

    def proceed() -> bool:
        if stopping():
            raise LookStoppedError
        return True

    troubles = dict[str, str]()
    policies = Policies()
    try:
        policies = PolicyRepository(node.policies.location).load()
    except (PolicyError, StoreError) as error:
        troubles[POLICIES] = str(error)
    adopted = {(one.store, one.space): one.ended_at for one in AdoptionCatalog(node.databases.own).spaces()}
    work = OpenWork(holds=node.stores.change_guard.pending())
    statuses = ProtectionStatus(node.databases.own, policies, work, reports.latest, now).spaces()
    spaces = [one for one in statuses if proceed()]
    where = {(one.store, one.space) for one in spaces} | {(c.store, one.space) for one in spaces for c in one.copies}
    places = where | set(node.mill.reports.current_spaces())
    found = {place: reports.latest(*place) for place in places if proceed()}
    return CopiesStatus(
        policies=policies,
        spaces=spaces,
        reports={place: report for place, report in found.items() if report is not None},
        adopted=adopted,
        troubles=troubles | reports.troubles,
    )


def _without_items(report: IntegrityReport) -> IntegrityReport:
    strays, absent = (msgspec.structs.replace(some, first=()) for some in (report.strays, report.absent))
    return msgspec.structs.replace(report, findings=(), repaired=(), strays=strays, absent=absent)
