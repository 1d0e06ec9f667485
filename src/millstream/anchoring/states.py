"""The states of a batch on its way to its anchor, and the plain data that the journal hands out."""

from __future__ import annotations

import enum

import msgspec


class BatchState(enum.StrEnum):
    """The states of a batch; the last two are final."""

    ACCEPTED = "accepted"
    CUT = "cut"
    ANCHORED = "anchored"
    OBSERVED = "observed"
    REJECTED = "rejected"


STATE_WORDS = {"queued": "waiting", "cut": "being anchored", "observed": "verified"}
"""Displayed names of states of batches and operations, where they differ from the names in JSON."""


def state_word(state: str) -> str:
    """The displayed name of *state*."""
    return STATE_WORDS.get(state, state)


class BatchStatus(msgspec.Struct, frozen=True):
    """The status of a batch: the ledger entry if it is anchored, the reason if it is rejected."""

    state: BatchState
    anchor: int | None = None
    reason: str | None = None


class AddResult(msgspec.Struct, frozen=True):
    """What a call of ``add`` brought about.

    ``conflicting`` names batches whose id was known with other messages in it: the first one holds, these were not
    added.
    """

    batches: int
    rejects: int
    known: int
    conflicting: tuple[str, ...] = ()


class FeedPosition(msgspec.Struct, frozen=True):
    """How far a log of batches was passed to the journal: to the id ``last_id`` of the log ``batches``."""

    batches: str
    last_id: int


class BatchStream(msgspec.Struct, frozen=True):
    """Batches that may share a manifest: those of one log under one batching configuration (canonical JSON)."""

    stream: int
    log: str
    config: str


class CutCandidate(msgspec.Struct, frozen=True):
    """An accepted batch: its place in the order of adding, its id, and its bytes in a file."""

    seq: int
    batch: str
    size: int


class JournalCut(msgspec.Struct, frozen=True):
    """A cut that is under way: ``state`` is ``cut`` or ``anchored``; the ledger had ``ledger_after`` entries before."""

    cut: int
    stream: int
    state: BatchState
    anchor_string: str
    manifest: bytes
    ledger_after: int
    anchor: int | None


class CutPlan(msgspec.Struct, frozen=True):
    """A cut to be: the accepted batches of *stream* up to *last_seq*, and the rejects added no later with ids up to
    *last_reject*."""

    stream: BatchStream
    last_seq: int
    last_reject: int
    batches: int
    rejects: int
    anchor_string: str
    manifest: bytes
    ledger_after: int


class JournalTotals(msgspec.Struct, frozen=True):
    """The number of batches in each state, and how many rejects wait for the next batch of their log."""

    accepted: int = 0
    cut: int = 0
    anchored: int = 0
    observed: int = 0
    rejected: int = 0
    waiting_rejects: int = 0
