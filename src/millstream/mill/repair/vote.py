"""The vote on which bytes of a content item are the right ones: a pure function.

What our own records say of an item decides, and nothing that is stored beside a copy: a forger of a copy forges its
sidecar or its metadata with it, and may forge two copies alike. The own records are the manifest and the audit log, in
which the checksums were written when the bytes arrived at each store. Where they agree for all stores, the copy whose
bytes have that checksum is right, however many other copies agree with one another. Where they disagree, where nothing
was recorded, and where no copy has the bytes that were, nothing is written.

Why repairing a source copy does not break promise P8 ("no job ever writes to a source copy"): duplication, checks and
sweeps never do. A repair may, and only to put back what the source itself once held: our records have those very bytes
as what the source took, another copy still has them, and the source's own bytes no longer match what its provider
recorded, or are gone. A source that was rewritten through its provider (which has recorded another sum since) is a
change, not rot, and is not touched; nor is one whose provider keeps no sum, so that it cannot be decided, or whose
bytes cannot be read and may be whole. An item that vanished from a source may have been deleted there: it is put back
only where our audit log, to which a deletion would have been told, says that it must be there, and in the space of a
CAS, which keeps all that was anchored. A person may decide otherwise (*restore_source*), and the source is written
like any copy, except where it is only ever read.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from millstream.mill.integrity_decision import SourceAnswer


class CopyReading(msgspec.Struct, frozen=True, kw_only=True):
    """One copy as it was read: ``content`` and ``provider`` are sums (hex) or answers; see the bit check.

    ``recorded`` are the sums of our own records for this store: that of the manifest, and that of the audit log.
    ``may_be_deleted``: the store is no copy by the policies, and nothing says that the item must be there.
    ``read_only``: other programs write the store, and nothing is ever written there. ``own_record``: the sum of
    ``provider`` is not the provider's own, but one that we keep with the object.
    """

    store: str
    content: str
    provider: str | None = None
    source: bool = False
    recorded: frozenset[str] = frozenset()
    may_be_deleted: bool = False
    read_only: bool = False
    own_record: bool = False

    @property
    def vote(self) -> str | None:
        """The sum of the bytes; None where they could not be read."""
        return None if self.content in _ANSWERS else self.content

    @property
    def is_record_damaged(self) -> bool:
        """Whether what we keep beside the bytes cannot be used, or has another sum than the bytes.

        A sum beside the bytes is only wrong alone if no record of ours has another one than the bytes.
        """
        if self.provider == SourceAnswer.DAMAGED_RECORD:
            return True
        differs = self.provider not in (self.content, None) and self.provider not in _ANSWERS
        return self.own_record and differs and self.recorded <= {self.content}


class RepairDecision(enum.StrEnum):
    """The result of a vote, or that there is nothing to vote on."""

    HEALTHY = "healthy"  # every copy is good
    REPAIR = "repair"
    REFUSE = "refuse"
    UNKNOWN = "unknown"  # the manifest has no copy of the item


class RepairAction(msgspec.Struct, frozen=True):
    """A copy to write again; ``quarantine`` if its bytes are kept."""

    store: str
    quarantine: bool


class RepairPlan(msgspec.Struct, frozen=True):
    """Write the bytes with *sha256* from store *good* to each copy of ``actions``; ``reasons`` say what is not done."""

    decision: RepairDecision
    sha256: str | None = None
    good: str | None = None
    actions: tuple[RepairAction, ...] = ()
    reasons: tuple[str, ...] = ()


_ANSWERS = frozenset(SourceAnswer)
_ACCEPT = "record the right content with `millstream mill accept`"
_FORGET = "record the deletion (`millstream mill forget`)"
_FORGET_ALL = "record its deletion in every store that lists it (`millstream mill forget`)"
_PUT_BACK = "put the recorded bytes back (`millstream store get`), or record these (`millstream mill accept`)"
_RESTORE = "put back what was recorded (`millstream mill repair SPACE ID --restore-source`)"


def plan_repair(copies: Sequence[CopyReading], *, restore_source: bool = False) -> RepairPlan:
    """The plan for one content item, of which *copies* is every copy that should exist.

    With *restore_source* a source that was rewritten is written like any copy: a person has decided that.
    """
    winner, reason = _elect(copies)
    if winner is None:
        return RepairPlan(RepairDecision.REFUSE, reasons=(reason,))
    good = [copy for copy in copies if copy.content == winner]
    whole = [copy for copy in good if not copy.is_record_damaged]
    actions, reasons = [], []
    for copy in copies:
        if copy in whole:
            continue
        refusal = _refuse(copy, winner, restore_source)
        if refusal:
            reasons.append(refusal)
        else:
            actions.append(RepairAction(copy.store, quarantine=copy.content not in (SourceAnswer.MISSING, winner)))
    decision = RepairDecision.REPAIR if actions else RepairDecision.REFUSE if reasons else RepairDecision.HEALTHY
    return RepairPlan(decision, winner, (whole or good)[0].store, tuple(actions), tuple(reasons))


def _elect(copies: Sequence[CopyReading]) -> tuple[str | None, str]:
    """The sum that our records agree on and a copy has, or None and why there is none."""
    recorded = [copy.recorded for copy in copies if copy.recorded]
    if not recorded:
        return None, f"no checksum was recorded when the item arrived, so the right copy is not known: {_ACCEPT}"
    agreed = frozenset.intersection(*recorded)
    if not agreed:
        return None, "the manifest has different checksums for the copies: run `millstream mill duplicate` first"
    if len(agreed) > 1:
        return None, (
            "manifest and audit log differ for every copy: rebuild the manifest from the audit log (`millstream mill "
            "rebuild content-index`)"
        )
    (winner,) = agreed
    votes = [copy.vote for copy in copies if copy.vote is not None]
    return (winner, "") if winner in votes else (None, _explain_no_match(votes))


def _explain_no_match(votes: Sequence[str]) -> str:
    """The reason why none of the *votes*, the checksums of readable copies, is the recorded one."""
    if not votes:
        return (
            "no copy can be read: make a store that has a copy available, then repair the item again; if the item was "
            f"deleted everywhere, {_FORGET_ALL}"
        )
    if len(votes) > 1 and len(set(votes)) == 1:
        return f"all copies have the same content, but the manifest has another checksum; if they are right, {_ACCEPT}"
    return f"no copy has the recorded checksum: restore the item from a backup, or {_ACCEPT}"


def _refuse(copy: CopyReading, winner: str, restore_source: bool) -> str | None:
    """The reason why this bad copy must not be written, if there is one."""
    if copy.content == SourceAnswer.NOT_READ and copy.provider != SourceAnswer.DAMAGED_RECORD:
        return f"store {copy.store} did not answer: make the store available, then repair the item again"
    if copy.content == SourceAnswer.REFUSED:
        return (
            f"store {copy.store} does not give out the content: restore it from the archive, or grant the right to "
            "read it, then repair the item again"
        )
    if not copy.source and not copy.read_only:
        return None
    reason = _refuse_always(copy) or (None if restore_source else _refuse_without_person(copy, winner))
    return None if reason is None else f"store {copy.store} is the source, and {reason}"


def _refuse_always(source: CopyReading) -> str | None:
    if source.content == SourceAnswer.CHANGED:
        return "the item changed since it was adopted: run `millstream protect`, which adopts the change"
    if source.read_only and source.content == SourceAnswer.MISSING:
        return (
            "the item vanished from there, where nothing is ever written: put the item back or, if it was deleted on "
            f"purpose, {_FORGET}"
        )
    if source.read_only:
        return f"nothing is ever written there: {_PUT_BACK}"
    return None if source.recorded else f"the manifest has no checksum of the item: {_ACCEPT}"


def _refuse_without_person(source: CopyReading, winner: str) -> str | None:
    if source.content == SourceAnswer.MISSING and source.may_be_deleted:
        return f"the item vanished from there: {_RESTORE} or, if it was deleted on purpose, {_FORGET}"
    if source.content == SourceAnswer.UNREADABLE:
        return f"its content cannot be read: look for disk errors; then {_RESTORE}"
    if source.provider == SourceAnswer.DAMAGED_RECORD or source.content == winner:
        return f"its own record of the item is damaged: {_RESTORE}"
    if source.provider == SourceAnswer.NO_CHECKSUM and source.vote is not None:
        return (
            "has no checksum of the item, which may have been rewritten: record the content (`millstream mill "
            f"accept`), or {_RESTORE}"
        )
    if source.provider not in _ANSWERS and source.provider not in (None, winner):
        return f"the item was rewritten: record the change instead (`millstream mill accept`), or {_RESTORE}"
    return None
