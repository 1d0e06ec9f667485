"""The vote on which bytes of a content item are the right ones: a pure function.

The manifest has one vote and so has every copy whose bytes could be read. A copy is *proven good* when its bytes
match the manifest; where the manifest has no sum, when at least two copies agree. The winner needs two votes, and
more than any other sum; otherwise, and whenever all disagree, nothing is written.

How healing a source copy squares with promise P8 ("no job ever writes to a source copy"): duplication, checks and
sweeps never do. A repair may, and only to put back what the source itself once held: the manifest recorded those very
bytes when the source took them, another copy still has them, and the source's own bytes no longer match what its
provider recorded, or are gone. A source that was rewritten through its provider (provider and bytes agree on a new
sum) is a change, not rot, and is never touched; nor is one whose provider keeps no sum, so that nobody can tell.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence

import msgspec

from millstream.mill.bit_check_table import SourceAnswer


class CopyReading(msgspec.Struct, frozen=True):
    """One copy as it was read: ``content`` and ``provider`` are sums (hex) or answers; see the bit check."""

    store: str
    content: str
    provider: str | None = None
    source: bool = False

    @property
    def vote(self) -> str | None:
        """The sum that the copy votes for; None where its bytes could not be read."""
        return None if self.content in _ANSWERS else self.content


class RepairDecision(enum.StrEnum):
    """What a vote came to."""

    HEALTHY = "healthy"  # every copy is good
    HEAL = "heal"
    REFUSE = "refuse"


class RepairAction(msgspec.Struct, frozen=True):
    """One copy that is to be written anew; ``quarantine`` where there are bytes to keep."""

    store: str
    quarantine: bool


class RepairPlan(msgspec.Struct, frozen=True):
    """What to do: write the bytes with *sha256* from store *good* to each cure. ``reasons`` say what is not done."""

    health: RepairDecision
    sha256: str | None = None
    good: str | None = None
    cures: tuple[RepairAction, ...] = ()
    reasons: tuple[str, ...] = ()


_ANSWERS = frozenset(SourceAnswer)


def plan_repair(manifest: str | None, copies: Sequence[CopyReading]) -> RepairPlan:
    """The plan for one content item. *manifest* is its recorded sum, *copies* every copy that should exist."""
    winner, reason = _elect(manifest, copies)
    if winner is None:
        return RepairPlan(RepairDecision.REFUSE, reasons=(reason,))
    good = [copy for copy in copies if copy.content == winner]
    cures, reasons = [], []
    for copy in copies:
        if copy.content == winner:
            continue
        refusal = _refuse(copy, manifest)
        if refusal:
            reasons.append(refusal)
        else:
            cures.append(RepairAction(copy.store, quarantine=copy.content != SourceAnswer.MISSING))
    health = RepairDecision.HEAL if cures else RepairDecision.REFUSE if reasons else RepairDecision.HEALTHY
    return RepairPlan(health, winner, good[0].store, tuple(cures), tuple(reasons))


def _elect(manifest: str | None, copies: Sequence[CopyReading]) -> tuple[str | None, str]:
    """The sum that won the vote, or None and why nobody won."""
    votes = Counter(copy.vote for copy in copies if copy.vote is not None)
    if not votes:
        return None, "no copy can be read"
    if manifest is not None:
        votes[manifest] += 1
    (winner, most), *others = votes.most_common(2)
    if most < 2:
        return None, "manifest and copies all disagree"
    if others and others[0][1] == most:
        return None, f"no majority: {most} votes each for {winner[:12]}… and {others[0][0][:12]}…"
    if manifest is not None and winner != manifest:
        return None, "the copies agree with one another against the manifest: a change may not have been recorded"
    return winner, ""


def _refuse(copy: CopyReading, manifest: str | None) -> str | None:
    """Why this bad copy must not be written, if there is a reason."""
    if copy.content == SourceAnswer.NOT_READ:
        return f"store {copy.store} did not answer"
    if not copy.source:
        return None
    if manifest is None:
        return f"store {copy.store} is the source and the manifest does not say what it held"
    if copy.provider == SourceAnswer.NO_CHECKSUM and copy.vote is not None:
        return f"store {copy.store} is the source and has no checksum of it: it may have been rewritten"
    if copy.provider == copy.content and copy.vote is not None:
        return f"store {copy.store} is the source and was rewritten: record the change instead"
    return None
