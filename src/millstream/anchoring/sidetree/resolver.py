"""The state of a DID out of its anchored operations (Sidetree v1.0, "Resolution").

Pure: the same operations give the same state, whatever the order in which they are handed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from millstream.anchoring.sidetree.encoding import commitment_of, hashes_to
from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.model import Operation, OperationType
from millstream.anchoring.sidetree.operations import reveals_its_key
from millstream.anchoring.sidetree.patches import Document, apply_patches
from millstream.anchoring.sidetree.profile import SIDETREE, Profile


class AnchoredOperation(msgspec.Struct, frozen=True, gc=False):
    """An operation and its place: the number of its transaction in the ledger, and its index in the batch."""

    number: int
    index: int
    operation: Operation


class DidState(msgspec.Struct, frozen=True):
    """The state of a DID. Without a recovery commitment it is deactivated; without an update commitment it must be
    recovered before it can be updated. ``number`` is the last transaction that changed it (-1: none is anchored)."""

    suffix: str
    document: Document
    recovery_commitment: str | None
    update_commitment: str | None
    number: int = -1

    @property
    def deactivated(self) -> bool:
        return self.recovery_commitment is None


class OperationOutcome(msgspec.Struct, frozen=True):
    """The effect of one operation on its DID: it was *applied*, or had no effect for a *reason*."""

    applied: bool
    reason: str | None = None


class Chain:
    """The state of one DID under *profile*, while its operations are added in the order of the ledger.

    An operation may have its effect later than it was anchored: its commitment may come behind it. With
    ``documents=False`` the documents of the states stay empty, which costs less.
    """

    def __init__(self, profile: Profile = SIDETREE, *, documents: bool = True) -> None:
        self.state: DidState | None = None
        self._profile = profile
        self._documents = documents
        self._waiting: dict[_Kind, dict[str, list[AnchoredOperation]]] = {_RECOVERY: {}, _UPDATE: {}}
        self._opened: dict[_Kind, set[str]] = {_RECOVERY: set(), _UPDATE: set()}
        self._used = set[str]()
        self._tried: dict[tuple[_Kind, str], int] = {}
        self._applied = set[tuple[int, int]]()

    def add(self, anchored: AnchoredOperation) -> None:
        """Add the operation behind all others."""
        operation = anchored.operation
        if operation.type == OperationType.CREATE:
            if self.state is None:
                self._advance(anchored, _create(anchored, documents=self._documents), _RECOVERY)
                self._follow(_RECOVERY)
                self._follow(_UPDATE)
            return
        kind = _kind(operation)
        commitment = commitment_of(operation.reveal_value)
        self._waiting[kind].setdefault(commitment, []).append(anchored)
        if self.state is not None and commitment == _next_commitment(self.state, kind):
            self._follow(kind)
            self._follow(_UPDATE)

    def effect(self, anchored: AnchoredOperation) -> OperationOutcome:
        """The effect of an added operation."""
        if (anchored.number, anchored.index) in self._applied:
            return OperationOutcome(True)
        return OperationOutcome(False, self.reason(anchored.operation))

    def accepts(self, operation: Operation) -> bool:
        """Whether *operation*, whose form and signature were checked, would be applied now."""
        if operation.type == OperationType.CREATE or self.state is None:
            return operation.type == OperationType.CREATE and self.state is None
        kind = _kind(operation)
        present = _next_commitment(self.state, kind)
        if present is None or commitment_of(operation.reveal_value) != present:
            return False
        source = operation.payload if kind == _RECOVERY else operation.delta or {}
        following = source.get(f"{kind}Commitment")
        return following != present and following not in self._opened[kind]

    def was_opened(self, commitment: str | None) -> bool:
        """Whether *commitment* was opened by an operation that was applied."""
        return commitment in self._used

    def _follow(self, kind: _Kind) -> None:
        """Apply the earliest valid operation for the present commitment, and continue to the next commitment.

        A commitment that was opened is never taken up again, or a chain could run in circles.
        """
        opened = self._opened[kind]
        while self.state is not None and not self.state.deactivated:
            present = _next_commitment(self.state, kind)
            if present is None or present not in self._waiting[kind]:
                return
            # What was tried for this commitment in this state fails again.
            candidates = self._waiting[kind][present][self._tried.get((kind, present), 0) :]
            for anchored in candidates:
                following = apply(self.state, anchored, self._profile, documents=self._documents)
                following_commitment = None if following is None else _next_commitment(following, kind)
                if following is None or following_commitment == present or following_commitment in opened:
                    continue
                opened.add(present)
                self._used.add(present)
                self._advance(anchored, following, kind)
                break
            else:
                self._tried[kind, present] = len(self._waiting[kind][present])
                return

    def _advance(self, anchored: AnchoredOperation, state: DidState, kind: _Kind) -> None:
        self.state = state
        self._applied.add((anchored.number, anchored.index))
        self._tried.clear()
        if kind == _RECOVERY:
            self._opened[_UPDATE] = set()

    def reason(self, operation: Operation) -> str:
        """The reason why *operation* has no effect on the present state."""
        if operation.type == OperationType.CREATE:
            return "the DID already exists"
        if self.state is None:
            return "the DID has not been created"
        commitment, kind = commitment_of(operation.reveal_value), _kind(operation)
        reasons = [
            (not reveals_its_key(operation), "the operation is not signed by the key whose hash is its reveal value"),
            (commitment in self._used, "the key of the operation was used before"),
            (self.state.deactivated, "the DID is deactivated"),
            (
                commitment != _next_commitment(self.state, kind),
                "the operation reveals a key to which the DID is not committed",
            ),
        ]
        last = "the delta is not the signed one, or commits to a key that was used before"
        return next((text for holds, text in reasons if holds), last)


def resolve(operations: Iterable[AnchoredOperation], profile: Profile = SIDETREE) -> DidState | None:
    """The state after all *operations* of one suffix under *profile*; None where no valid create is among them."""
    return chain_of(operations, profile).state


def chain_of(operations: Iterable[AnchoredOperation], profile: Profile = SIDETREE, *, documents: bool = True) -> Chain:
    """The chain of all *operations* of one suffix, in whatever order they come."""
    chain = Chain(profile, documents=documents)
    for anchored in sorted(operations, key=lambda anchored: (anchored.number, anchored.index)):
        chain.add(anchored)
    return chain


def initial_state(create: Operation) -> DidState:
    """The state that *create*, which was checked with its delta, makes while it is not anchored."""
    data, delta = create.suffix_data, create.delta
    assert data is not None and delta is not None, "a checked create has both"
    return _changed(DidState(create.suffix, {}, data["recoveryCommitment"], None), delta, documents=True)


def apply(
    state: DidState | None, anchored: AnchoredOperation, profile: Profile = SIDETREE, *, documents: bool = True
) -> DidState | None:
    """*state* after one more operation; None where the operation is not valid for that state.

    With ``documents=False`` its document stays as it is.
    """
    operation = anchored.operation
    if operation.type == OperationType.CREATE:
        return _create(anchored, documents=documents) if state is None else None
    if state is None or commitment_of(operation.reveal_value) != _next_commitment(state, _kind(operation)):
        return None
    if not reveals_its_key(operation):
        return None
    if operation.type == OperationType.UPDATE and profile.reference and documents:
        state = msgspec.structs.replace(state, document=_copied(state.document))
    return _APPLIERS[operation.type](state, anchored, documents)


_Kind = str
_RECOVERY: Final[_Kind] = "recovery"
_UPDATE: Final[_Kind] = "update"


def _kind(operation: Operation) -> _Kind:
    return _UPDATE if operation.type == OperationType.UPDATE else _RECOVERY


def _next_commitment(state: DidState, kind: _Kind) -> str | None:
    return state.update_commitment if kind == _UPDATE else state.recovery_commitment


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


def _create(anchored: AnchoredOperation, *, documents: bool) -> DidState:
    operation = anchored.operation
    data = operation.suffix_data
    assert data is not None, "a create has suffix data"
    bare = DidState(operation.suffix, {}, data["recoveryCommitment"], None, anchored.number)
    return _with_delta(bare, operation.delta, data["deltaHash"], documents=documents)


def _apply_update(state: DidState, anchored: AnchoredOperation, documents: bool) -> DidState | None:
    """An update whose delta is unavailable changes nothing, not even the commitment."""
    delta, signed = anchored.operation.delta, anchored.operation.signed
    if delta is None or signed is None or not hashes_to(delta, signed.payload["deltaHash"]):
        return None
    return _changed(msgspec.structs.replace(state, number=anchored.number), delta, documents=documents)


def _apply_recover(state: DidState, anchored: AnchoredOperation, documents: bool) -> DidState | None:
    """A recovery counts even without its delta: the recovery key moves on, and the document is empty."""
    signed = anchored.operation.signed
    assert signed is not None, "a recover has signed data"
    bare = DidState(state.suffix, {}, signed.payload["recoveryCommitment"], None, anchored.number)
    return _with_delta(bare, anchored.operation.delta, signed.payload["deltaHash"], documents=documents)


def _apply_deactivate(state: DidState, anchored: AnchoredOperation, _documents: bool) -> DidState | None:
    return DidState(state.suffix, {}, None, None, anchored.number)


def _with_delta(state: DidState, delta: Mapping[str, Any] | None, delta_hash: str, *, documents: bool) -> DidState:
    """*state* after *delta*; as it is where the delta is not available or another one was signed."""
    try:
        if delta is None or not hashes_to(delta, delta_hash):
            return state
    except RequestError:
        return state
    return _changed(state, delta, documents=documents)


def _changed(state: DidState, delta: Mapping[str, Any], *, documents: bool) -> DidState:
    """*state* after *delta*, the signed one; the document only changes with *documents*.

    Where a patch does not apply none does, and the commitment moves on: the key was revealed.
    """
    document = state.document
    if documents:
        with contextlib.suppress(RequestError):
            document = apply_patches(document, delta["patches"])
    return msgspec.structs.replace(state, document=document, update_commitment=delta["updateCommitment"])


_APPLIERS: Mapping[OperationType, Callable[[DidState, AnchoredOperation, bool], DidState | None]] = {
    OperationType.UPDATE: _apply_update,
    OperationType.RECOVER: _apply_recover,
    OperationType.DEACTIVATE: _apply_deactivate,
}
