"""The states of an operation, and the plain data that the registry's database hands out."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from millstream.anchoring.sidetree import Operation


class OperationState(enum.StrEnum):
    """Show the state of an operation.

    The last three are final. ``accepted``: durable, and assigned to no instance. ``queued``: in the queue of an
    instance. ``cut``: in a recorded batch. ``anchored``: the ledger has that batch, which could not be read back
    yet. ``observed``: the batch was read back. ``rejected``: it can never be anchored, with the reason. ``dead``:
    all retries failed, with the last cause.
    """

    ACCEPTED = "accepted"
    QUEUED = "queued"
    CUT = "cut"
    ANCHORED = "anchored"
    OBSERVED = "observed"
    REJECTED = "rejected"
    DEAD = "dead"


class OperationEffect(enum.StrEnum):
    """The effect of an observed operation on its DID."""

    APPLIED = "applied"
    NONE = "no effect"


FINAL = frozenset({OperationState.OBSERVED, OperationState.REJECTED, OperationState.DEAD})


class OperationStatus(msgspec.Struct, frozen=True):
    """The state of an operation. Times in microseconds; ``anchor`` is the number of the ledger entry, ``index`` the
    position of the operation in it. ``effect`` is known for an observed operation, if requested; ``reason`` is why it
    has no effect, or why the operation was rejected.
    """

    id: str
    suffix: str
    type: str
    state: OperationState
    accepted_at: int
    retries: int = 0
    anchor: int | None = None
    index: int | None = None
    reason: str | None = None
    effect: OperationEffect | None = None


class Submission(msgspec.Struct, frozen=True):
    """An operation that a client has sent: its canonical request, and the hash of that, which is its id."""

    id: str
    suffix: str
    type: str
    request: bytes
    version: str


class QueuedOperation(msgspec.Struct, frozen=True):
    """An operation in an instance's hands. ``seq`` is its place in the order of acceptance, over all instances."""

    seq: int
    id: str
    suffix: str
    request: bytes
    version: str
    retries: int
    accepted_at: int
    type: str


class ParsedOperation(msgspec.Struct, frozen=True, gc=False):
    """An operation of this registry, and what its stored request says."""

    queued: QueuedOperation
    operation: Operation


class QueueSummary(msgspec.Struct, frozen=True):
    """The number of some operations of a queue and the bytes of their requests, by type; when the oldest of them was
    accepted (microseconds; 0 without any), and under which versions of the protocol they were accepted.
    """

    by_type: Mapping[str, tuple[int, int]]
    oldest: int
    versions: frozenset[str]

    @property
    def count(self) -> int:
        """The number of all of them."""
        return sum(count for count, _ in self.by_type.values())

    def __add__(self, other: QueueSummary) -> QueueSummary:
        """These operations and those of *other*."""
        by_type = dict(self.by_type)
        for kind, (count, size) in other.by_type.items():
            known_count, known_size = by_type.get(kind, (0, 0))
            by_type[kind] = known_count + count, known_size + size
        oldest = min((time for time in (self.oldest, other.oldest) if time), default=0)
        return QueueSummary(by_type, oldest, self.versions | other.versions)


NOTHING_QUEUED = QueueSummary({}, 0, frozenset())


class OpenCut(msgspec.Struct, frozen=True):
    """A batch that was written down and is not observed yet. ``number`` is its ledger entry once it has one."""

    cut: int
    instance: str
    anchor_string: str
    version: str
    ledger_after: int
    number: int | None = None
