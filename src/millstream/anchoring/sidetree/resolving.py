"""The state of a DID out of its anchored operations (Sidetree v1.0, "Resolution").

Pure: the same operations give the same state, whatever the order in which they are handed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.anchoring.sidetree.encoding import commitment_of, hashes_to
from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.model import Operation, OperationType
from millstream.anchoring.sidetree.operations import reveals_its_key
from millstream.anchoring.sidetree.patches import Document, apply_patches
from millstream.anchoring.sidetree.profile import SIDETREE, Profile


class Anchored(msgspec.Struct, frozen=True):
    """An operation and its place: the number of its transaction in the ledger, and its index in the batch."""

    number: int
    index: int
    operation: Operation


class DidState(msgspec.Struct, frozen=True):
    """Where a DID stands. Without a recovery commitment it is deactivated; without an update commitment nobody can
    update it before it is recovered. ``number`` is the last transaction that changed it (-1: none is anchored)."""

    suffix: str
    document: Document
    recovery_commitment: str | None
    update_commitment: str | None
    number: int = -1

    @property
    def deactivated(self) -> bool:
        return self.recovery_commitment is None


def resolve(operations: Iterable[Anchored], profile: Profile = SIDETREE) -> DidState | None:
    """The state after all *operations* of one suffix under *profile*; None where no valid create is among them."""
    ordered = sorted(operations, key=lambda anchored: (anchored.number, anchored.index))
    state = _first_create(ordered)
    if state is None:
        return None
    state = _follow(
        state, _by_commitment(ordered, {OperationType.RECOVER, OperationType.DEACTIVATE}), _recovery, profile
    )
    if state.deactivated:
        return state
    return _follow(state, _by_commitment(ordered, {OperationType.UPDATE}), _update, profile)


def apply(state: DidState | None, anchored: Anchored, profile: Profile = SIDETREE) -> DidState | None:
    """*state* after one more operation; None where the operation is not valid for that state.

    A DID's chain may be followed one operation at a time with this, as long as they come in ledger order.
    """
    operation = anchored.operation
    if operation.type == OperationType.CREATE:
        return _create(anchored) if state is None else None
    if state is None or not reveals_its_key(operation):
        return None
    expected = state.update_commitment if operation.type == OperationType.UPDATE else state.recovery_commitment
    if commitment_of(operation.reveal_value) != expected:
        return None
    if operation.type == OperationType.UPDATE and profile.reference:
        state = msgspec.structs.replace(state, document=_copied(state.document))
    return _APPLIERS[operation.type](state, anchored)


_Commitment = Callable[[DidState], str | None]


def _recovery(state: DidState) -> str | None:
    return state.recovery_commitment


def _update(state: DidState) -> str | None:
    return state.update_commitment


def _first_create(ordered: Sequence[Anchored]) -> DidState | None:
    for anchored in ordered:
        if anchored.operation.type == OperationType.CREATE:
            return _create(anchored)
    return None


def _by_commitment(ordered: Sequence[Anchored], kinds: set[OperationType]) -> Mapping[str, list[Anchored]]:
    """The operations that open each commitment, earliest first."""
    found: dict[str, list[Anchored]] = {}
    for anchored in ordered:
        if anchored.operation.type in kinds:
            found.setdefault(commitment_of(anchored.operation.reveal_value), []).append(anchored)
    return found


def _follow(
    state: DidState, candidates: Mapping[str, list[Anchored]], commitment: _Commitment, profile: Profile
) -> DidState:
    """Apply the earliest valid operation for the present commitment, and go on to the next commitment.

    A commitment that was opened is never taken up again, or a chain could run in circles.
    """
    opened = set[str]()
    while (present := commitment(state)) is not None and present in candidates:
        opened.add(present)
        following = _first_valid(state, candidates[present], commitment, opened, profile)
        if following is None or following.deactivated:
            return following or state
        state = following
    return state


def _first_valid(
    state: DidState, candidates: Iterable[Anchored], commitment: _Commitment, opened: set[str], profile: Profile
) -> DidState | None:
    for anchored in candidates:
        following = apply(state, anchored, profile)
        if following is not None and commitment(following) not in opened:
            return following
    return None


def _copied(value: Any) -> Any:
    """*value*, with an empty object for each null inside: so the reference copies a document before it is updated."""
    if isinstance(value, list):
        items = []
        for item in value:
            items.append(_copied(item))
        return items
    if isinstance(value, dict):
        members = {}
        for name, item in value.items():
            members[name] = _copied(item)
        return members
    return {} if value is None else value


def _create(anchored: Anchored) -> DidState:
    operation = anchored.operation
    data = operation.suffix_data
    assert data is not None, "a create has suffix data"
    bare = DidState(operation.suffix, {}, data["recoveryCommitment"], None, anchored.number)
    return _with_delta(bare, operation.delta, data["deltaHash"])


def _apply_update(state: DidState, anchored: Anchored) -> DidState | None:
    """An update whose delta cannot be had changes nothing, not even the commitment."""
    delta, signed = anchored.operation.delta, anchored.operation.signed
    if delta is None or signed is None or not hashes_to(delta, signed.payload["deltaHash"]):
        return None
    state = msgspec.structs.replace(state, number=anchored.number)
    return _with_delta(state, delta, signed.payload["deltaHash"])


def _apply_recover(state: DidState, anchored: Anchored) -> DidState | None:
    """A recovery counts even without its delta: the recovery key moves on, and the document is empty."""
    signed = anchored.operation.signed
    assert signed is not None, "a recover has signed data"
    bare = DidState(state.suffix, {}, signed.payload["recoveryCommitment"], None, anchored.number)
    return _with_delta(bare, anchored.operation.delta, signed.payload["deltaHash"])


def _apply_deactivate(state: DidState, anchored: Anchored) -> DidState | None:
    return DidState(state.suffix, {}, None, None, anchored.number)


def _with_delta(state: DidState, delta: Mapping[str, Any] | None, delta_hash: str) -> DidState:
    """*state* after *delta*; as it is where the delta is not to be had or another one was signed.

    Where a patch does not apply none does, and the commitment moves on: the key was revealed.
    """
    try:
        if delta is None or not hashes_to(delta, delta_hash):
            return state
    except RequestError:
        return state
    document = state.document
    with contextlib.suppress(RequestError):
        document = apply_patches(document, delta["patches"])
    return msgspec.structs.replace(state, document=document, update_commitment=delta["updateCommitment"])


_APPLIERS: Mapping[OperationType, Callable[[DidState, Anchored], DidState | None]] = {
    OperationType.UPDATE: _apply_update,
    OperationType.RECOVER: _apply_recover,
    OperationType.DEACTIVATE: _apply_deactivate,
}
