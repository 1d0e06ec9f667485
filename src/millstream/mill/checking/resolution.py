"""The bit error processor: the document's resolution task, which settles what can be settled without a person."""

from __future__ import annotations

from millstream.mill.auditing.trail import AuditTrail
from millstream.mill.checking.bitcheck import Verdict
from millstream.mill.checking.checker import Checked, Checker
from millstream.mill.errors import UnresolvedError
from millstream.mill.place import Place
from millstream.mill.repairing.repairer import Healing, Repairer
from millstream.mill.working.processor import Result
from millstream.mill.working.tasks import BitError

REFUSED = "repair"
"""The row of an error that a repair has left: there is nothing that could be tried again."""

_AUDIT = "A6"


class BitErrorProcessor:
    """Takes :class:`BitError` tasks to their end, each after a fresh look at the item.

    What is in order by now needs nothing. An audit log that stands alone against bytes, provider and manifest (row 6)
    gets the event that it lacks. All else is put to the vote of the copies. What is left is for a person: the task
    fails with the reason, and ends as a dead letter, of which the monitor tells.
    """

    def __init__(self, checker: Checker, repairer: Repairer, trail: AuditTrail | None = None) -> None:
        self._checker, self._repairer, self._trail = checker, repairer, trail

    def process(self, task: BitError, attempt: int) -> Result:  # noqa: ARG002
        """Raises :class:`UnresolvedError` with the place, the row and the reason in its text."""
        place = Place(task.store, task.space, task.content_id)
        if task.row == REFUSED:
            raise UnresolvedError(f"{place}: {task.detail}" if task.store else f"{task.content_id!r}: {task.detail}")
        checked = self._checker.check(place)
        found = checked.result
        if checked.outcome.verdict in (Verdict.SUCCESS, Verdict.IGNORE):
            return Result(f"{place} is in order by now: {found.row} {found.kind}", checks=(found,))
        if checked.outcome.row == _AUDIT and self._trail is not None:
            missed = self._trail.missing_event(found, checked.mimetype)
            return Result(f"{place}: the audit log gets what it lacks", checks=(found,), missed=(missed,))
        if checked.missed is not None:
            return Result(f"{place}: the audit gets what it lacks", checks=(found,), missed=(checked.missed,))
        return self._vote(place, checked)

    def _vote(self, place: Place, checked: Checked) -> Result:
        found = checked.result
        healing = self._repairer.repair(place.space, place.content_id, f"{place.store}: {found.row} {found.kind}")
        if healing.healed and not healing.refused:
            return Result(f"{place}: {healing.healed} copies healed")
        raise UnresolvedError(f"{place}: {found.row} {found.kind}: {found.detail} ({_reason(healing)})")


def _reason(healing: Healing) -> str:
    reasons = [event.reason for event in healing.refused]
    return "; ".join(reasons) or "every copy agrees with the manifest: ask the storage provider for its checksum"
