"""How far a ledger is signed and cosigned, and how each of its witnesses answered: for pages, programs and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from millstream.anchoring.errors import LedgerKeyError
from millstream.anchoring.transparency.cosignatures import Cosignature, cosignatures
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import MillstreamError
from millstream.node import Node
from millstream.node.ledger_trees import LedgerName

if TYPE_CHECKING:
    from millstream.anchoring.transparency.policy import TrustPolicy
    from millstream.anchoring.witness.collector import CosignatureCollector, CosignatureStatus
    from millstream.anchoring.witness.cosignature_tables import CosignedCheckpoint, WitnessRecord

WitnessState = Literal["cosigned", "not-asked", "away", "refuses", "forked", "failed"]
"""How a witness answered last: ``away`` did not answer, ``forked`` has cosigned another history than this ledger's,
``failed`` is one of the two where an earlier version did not record which."""


class CosigningCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of ``size`` entries (``text`` is the signed note) that was first offered to witnesses at
    ``offered_at``, had their quorum at ``completed_at`` (microseconds), and so after ``seconds``; None before that.
    """

    size: int
    text: str
    offered_at: int
    completed_at: int | None
    seconds: float | None
    cosignatures: Sequence[Cosignature]


class WitnessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A witness of the policy. ``has_signed`` is about the checkpoint that was offered last, ``size`` is the tree that
    the witness cosigned last, ``problem`` what it answered otherwise. Times are microseconds.
    """

    witness: str
    key: str
    url: str
    state: WitnessState
    has_signed: bool
    size: int | None = None
    asked_at: int | None = None
    cosigned_at: int | None = None
    problem: str | None = None


class LedgerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the ledger ``ledger`` is: its ``entries``, those that its newest checkpoint (``signed``) covers, and the
    ``problem`` of the last attempt to sign, copy or publish.

    ``checkpoint`` is the newest one that may be given out, with all its signatures, of the ledger ``origin``; ``keys``
    are the verifier keys that sign now, the newest first (none where the node may not read them).
    ``is_published`` says whether tiles are published, which monitors read; the node does not know who does.
    ``quorum`` are the witnesses that must sign (None without ``anchoring.witness_policy``); ``missing`` more must sign
    ``offered``, the checkpoint that was offered last. ``cosigned`` is the newest with the quorum. All of this is
    unknown if the policy cannot be read, for the reason ``policy_problem``.
    """

    ledger: str
    entries: int
    signed: int | None
    problem: str | None
    origin: str | None
    checkpoint: str | None
    keys: Sequence[str]
    is_published: bool
    quorum: str | None = None
    missing: int = 0
    cosigned: CosigningCheckpoint | None = None
    offered: CosigningCheckpoint | None = None
    witnesses: Sequence[WitnessStatus] = ()
    alarm_seconds: float = 0.0
    policy_problem: str | None = None


def ledger_status(node: Node, name: LedgerName) -> LedgerStatus:
    """How far the ledger *name*, which was begun, is."""
    ledgers, tree = node.ledgers, node.ledgers.tree(name)
    status, problem, policy_problem = tree.status(), None, None
    collector, text = None, None
    try:
        collector = ledgers.cosignatures.collector(name)
    except MillstreamError as error:
        problem = policy_problem = str(error)
    else:
        try:
            text = _newest(node, name, collector)
        except MillstreamError as error:  # a place outside the folder cannot be read
            problem = str(error)
    facts = LedgerStatus(
        ledger=name,
        entries=status.entries,
        signed=status.signed,
        problem=status.problem or problem,
        origin=text.partition("\n")[0] if text else None,
        checkpoint=text,
        keys=_keys(node, name),
        is_published=ledgers.published(name) is not None,
        policy_problem=policy_problem,
    )
    if collector is None or ledgers.cosignatures.policy is None:
        return facts
    policy, found = ledgers.cosignatures.policy, collector.status()
    return msgspec.structs.replace(
        facts,
        quorum=policy.quorum_text(),
        missing=found.missing,
        cosigned=_checkpoint(found.complete, policy),
        offered=_checkpoint(found.collecting, policy),
        witnesses=_witnesses(policy, found),
        alarm_seconds=node.settings.anchoring.witness_alarm / MICROSECONDS,
    )


def _keys(node: Node, name: LedgerName) -> Sequence[str]:
    try:
        return [str(key) for key, _ in node.ledgers.keys(name).signing_until()]
    except LedgerKeyError:
        return ()


def _newest(node: Node, name: LedgerName, collector: CosignatureCollector | None) -> str | None:
    newest = node.ledgers.tree(name).released()
    if newest is None:
        return None
    return (collector.with_cosignatures(newest.data) if collector else newest.data).decode()


def _checkpoint(row: CosignedCheckpoint | None, policy: TrustPolicy) -> CosigningCheckpoint | None:
    from millstream.anchoring.transparency.policy import cosignature_times
    from millstream.anchoring.transparency.signed_note import parse_note

    if row is None:
        return None
    times = cosignature_times(parse_note(row.data), policy)
    return CosigningCheckpoint(
        size=row.size,
        text=row.data.decode(),
        offered_at=row.started_at,
        completed_at=row.completed_at,
        seconds=None if row.completed_at is None else (row.completed_at - row.started_at) / MICROSECONDS,
        cosignatures=cosignatures(times),
    )


def _witnesses(policy: TrustPolicy, found: CosignatureStatus) -> Sequence[WitnessStatus]:
    from millstream.anchoring.http_reader import redacted_url

    rows = []
    for name, key in policy.witnesses.items():
        record = found.witnesses.get(name)
        rows.append(
            WitnessStatus(
                witness=name,
                key=str(key),
                url=redacted_url(policy.urls.get(name, "")),
                state=_state(record),
                has_signed=name in found.signed,
                size=record.known_size if record else None,
                asked_at=record.asked_at if record else None,
                cosigned_at=record.answered_at if record else None,
                problem=record.problem if record else None,
            )
        )
    return rows


def _state(record: WitnessRecord | None) -> WitnessState:
    if record is None:
        return "not-asked"
    if record.is_fork:
        return "forked"
    if record.problem is None:
        return "cosigned"
    return "failed" if record.is_refusal is None else "refuses" if record.is_refusal else "away"
