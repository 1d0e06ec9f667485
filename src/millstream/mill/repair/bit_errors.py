"""The bit error processor: resolves findings that need no person."""

from __future__ import annotations

from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.errors import UnresolvedError
from millstream.mill.integrity.checker import BitChecker, CheckedItem
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.integrity_outcomes import CheckRow
from millstream.mill.item_ref import ItemRef
from millstream.mill.repair.repairer import Repairer, RepairResult
from millstream.mill.repair.vote import RepairDecision
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import BitError

REFUSED = "repair"
"""The row of an error that a repair has left, with the reason as its detail."""

_AUDIT = CheckRow.AUDIT_DIFFERS
_UNRECORDED = (CheckRow.UNRECORDED_DIFFERS, CheckRow.CONTRADICTED)


class BitErrorProcessor:
    """Takes :class:`BitError` tasks to their end, each after a fresh look at the item.

    What is in order by now needs nothing. An audit log that stands alone against bytes, provider and manifest (row 6)
    gets the event that it lacks. All else is put to the vote of the copies. What is left is for a person: the task
    fails with the reason, and ends as a dead letter, of which the monitor tells.
    """

    def __init__(self, checker: BitChecker, repairer: Repairer, audit_lookup: AuditLookup | None = None) -> None:
        self._checker, self._repairer, self._audit_lookup = checker, repairer, audit_lookup

    def process(self, task: BitError, attempt: int) -> TaskResult:  # noqa: ARG002
        """Raises :class:`UnresolvedError` with the place, the row and the reason in its text."""
        place = ItemRef(task.store, task.space, task.content_id)
        if task.row == REFUSED:
            return self._repair_again(task, place)
        checked = self._checker.check(place)
        found = checked.result
        if checked.outcome.verdict in (CheckVerdict.SUCCESS, CheckVerdict.IGNORE):
            return TaskResult(f"{place} is in order by now: {found.row} {found.kind}", checks=(found,))
        if checked.outcome.row == _AUDIT and self._audit_lookup is not None:
            missed = self._audit_lookup.missing_event(found, checked.mimetype)
            return TaskResult(f"{place}: the audit log gets what it lacks", checks=(found,), missed=(missed,))
        if checked.missed is not None:
            return TaskResult(f"{place}: the audit gets what it lacks", checks=(found,), missed=(checked.missed,))
        return self._vote(place, checked)

    def _repair_again(self, task: BitError, place: ItemRef) -> TaskResult:
        """Repair an item that a repair has left: its cause may be gone, when a dead letter is redriven."""
        shown = str(place) if task.store else repr(task.content_id)
        plan = self._repairer.plan(task.space, task.content_id)
        if plan.decision == RepairDecision.UNKNOWN and self._repairer.is_deleted(task.space, task.content_id):
            return TaskResult(f"{shown}: its deletion is recorded")
        if plan.decision in (RepairDecision.REFUSE, RepairDecision.UNKNOWN):
            raise UnresolvedError(f"{shown}: {'; '.join(plan.reasons)}")
        result = self._repairer.repair(task.space, task.content_id, task.detail)
        if result.refused:
            raise UnresolvedError(f"{shown}: {'; '.join(event.reason for event in result.refused)}")
        return TaskResult(f"{shown}: {result.repaired} copies repaired" if result.repaired else f"{shown} is in order")

    def _vote(self, place: ItemRef, checked: CheckedItem) -> TaskResult:
        found = checked.result
        result = self._repairer.repair(place.space, place.content_id, f"{place.store}: {found.row} {found.kind}")
        if result.repaired and not result.refused:
            return TaskResult(f"{place}: {result.repaired} copies repaired")
        raise UnresolvedError(f"{found.row} {found.kind}: {place}: {found.detail} ({_reason(result, found.row)})")


def _reason(result: RepairResult, row: str) -> str:
    reasons = [event.reason for event in result.refused]
    in_order = "every copy agrees with the manifest: ask the storage provider to correct its checksum"
    unknown = "the copies in the manifest are in order, and the manifest does not list this one"
    return "; ".join(reasons) or (unknown if row in _UNRECORDED else in_order)
