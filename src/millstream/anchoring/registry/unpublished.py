"""Operations that were accepted and are not anchored yet, and what a DID would be with them.

They are this registry's word, and nobody else's: other nodes see nothing of them, and an operation may still be
rejected. So they count only where the settings say so, and only for a while.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.anchoring.registry.operation_id import operation_id
from millstream.anchoring.registry.states import QueuedOperation
from millstream.anchoring.sidetree import (
    AnchoredOperation,
    DidState,
    Operation,
    OperationType,
    Profile,
    RequestError,
    apply,
    resolve,
)
from millstream.anchoring.sidetree.encoding import canonical
from millstream.anchoring.sidetree.operations import stored_operation, time_window_fault

_log = logging.getLogger(__name__)


class UnpublishedOperation(msgspec.Struct, frozen=True):
    """An operation that is on its way to the ledger, with what was recorded of it."""

    queued: QueuedOperation
    operation: Operation

    def described(self) -> Mapping[str, Any]:
        """As Orb lists it in ``unpublishedOperations``, and the ``id`` by which its status can be asked for.

        ``operation`` is the request in base64, ``transactionTime`` when it was accepted, in seconds since 1970.
        """
        return {
            "id": self.queued.id,
            "type": self.operation.type.value,
            "operation": base64.b64encode(self.queued.request).decode("ascii"),
            "transactionTime": self.queued.accepted_at // 1_000_000,
        }


def unpublished_operations(
    queued: Sequence[QueuedOperation], profile: Profile, now: int
) -> Sequence[UnpublishedOperation]:
    """Those of *queued* that may be anchored *now* (microseconds). One that cannot be read is passed over: it must not
    keep its DID from being resolved."""
    found = list[UnpublishedOperation]()
    for each in queued:
        try:
            operation = stored_operation(each.request, each.suffix)
        except (RequestError, KeyError, msgspec.DecodeError) as error:
            _log.warning("operation %s could not be read: %s: %s", each.id, type(error).__name__, error)
        else:
            if time_window_fault(operation, profile, now) is None:
                found.append(UnpublishedOperation(each, operation))
    return found


def without(
    anchored: Sequence[AnchoredOperation], unpublished: Sequence[UnpublishedOperation]
) -> Sequence[UnpublishedOperation]:
    """Those of *unpublished* that are not among *anchored*: others may have been observed since they were read."""
    known = (
        {operation_id(each.operation, canonical(each.operation.request)) for each in anchored}
        if unpublished
        else set[str]()
    )
    return [each for each in unpublished if each.queued.id not in known]


def follow(
    state: DidState | None,
    unpublished: Sequence[UnpublishedOperation],
    profile: Profile,
    *,
    create: Operation | None = None,
) -> tuple[DidState | None, Sequence[UnpublishedOperation]]:
    """The state that comes after *state*, and which of *unpublished* lead to it; its ``number`` stays that of *state*.

    They are taken in the order of acceptance, in which they will be anchored. Anybody can send an operation on any DID
    that is signed with a key of their own: what is not valid for the state it meets is passed over. A DID of which no
    create is anchored or accepted begins with *create*, which its long form carries.
    """
    if state is None and create is not None and all(o.operation.type != OperationType.CREATE for o in unpublished):
        state = resolve([AnchoredOperation(-1, 0, create)], profile)
    valid = list[UnpublishedOperation]()
    for place, each in enumerate(unpublished):
        following = apply(
            state, AnchoredOperation(-1 if state is None else state.number, place, each.operation), profile
        )
        if following is not None:
            state = following
            valid.append(each)
    return state, valid
