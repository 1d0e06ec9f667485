"""Which ledgers are not signed to their end, and how far witnesses have cosigned them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from millstream.node.ledger_trees import LEDGERS
from millstream.status.node_view import NodeView

if TYPE_CHECKING:
    from millstream.anchoring.witness.collector import CosignatureStatus


class UnsignedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger ``ledger``, of whose ``entries`` only ``signed`` are signed, or whose checkpoint is not given out.

    ``problem`` says why, if it was tried. ``since`` is the time of the first entry not signed (microseconds).
    """

    ledger: str
    entries: int
    signed: int
    problem: str | None
    since: int | None


def unsigned_ledgers(view: NodeView) -> Sequence[UnsignedLedger]:
    """The ledgers of the node that are not signed to their end, and those whose checkpoint is not given out."""
    found = list[UnsignedLedger]()
    for name in filter(view.node.ledgers.has, LEDGERS):
        status = view.node.ledgers.tree(name).status()
        signed = status.signed or 0
        if signed < status.entries or status.problem:
            first = view.node.ledgers.ledger(name).entry(signed + 1)
            since = first.time if first else None
            found.append(
                UnsignedLedger(ledger=name, entries=status.entries, signed=signed, problem=status.problem, since=since)
            )
    return found


class CosigningLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger ``ledger``, which witnesses cosign: ``missing`` more must sign the checkpoint that is collected.

    ``since`` is when it was first offered (microseconds), ``is_late`` says that this was longer ago than the settings
    allow. ``forks`` are the witnesses whose tree differs from the ledger's, with what they said, and ``away`` is what
    the first of the others said. ``cosigned_size`` entries have the quorum, since ``cosigned_at``. ``failing`` says of
    each witness that was asked whether it did not cosign last.
    """

    ledger: str
    missing: int
    since: int | None
    is_late: bool
    forks: Sequence[tuple[str, str]]
    away: str
    cosigned_size: int = 0
    cosigned_at: int | None = None
    failing: Mapping[str, bool] = {}

    def waited(self, now: int) -> int:
        """For how long the checkpoint that is collected lacks the quorum, at *now* (microseconds); 0 if it does not."""
        return max(0, now - self.since) if self.missing and self.since is not None else 0


def cosigning_ledgers(view: NodeView) -> Sequence[CosigningLedger]:
    """The ledgers of the node that witnesses cosign; none without a policy."""
    if not view.node.settings.anchoring.witness_policy:
        return []
    collectors = {
        name: view.node.ledgers.cosignatures.required_collector(name) for name in LEDGERS if view.node.ledgers.has(name)
    }
    return [_cosigning(view, name, collector.status()) for name, collector in collectors.items()]


def _cosigning(view: NodeView, name: str, status: CosignatureStatus) -> CosigningLedger:
    collecting = status.collecting
    is_open = collecting is not None and collecting.completed_at is None
    said = [(name, record.problem, record.is_fork) for name, record in status.witnesses.items() if record.problem]
    return CosigningLedger(
        ledger=name,
        missing=status.missing,
        since=collecting.started_at if collecting else None,
        is_late=is_open and status.age(view.clock.now()) > view.node.settings.anchoring.witness_alarm,
        forks=[(witness, problem) for witness, problem, is_fork in said if is_fork],
        away=next((f"{witness}: {problem}" for witness, problem, is_fork in said if not is_fork), ""),
        cosigned_size=status.complete.size if status.complete else 0,
        cosigned_at=status.complete.completed_at if status.complete else None,
        failing={witness: record.problem is not None for witness, record in status.witnesses.items()},
    )
