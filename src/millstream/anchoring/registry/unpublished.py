"""Operations that are accepted and not anchored yet, and the state of a DID after them.

Only this registry knows them: other nodes do not see them, and an operation may still be rejected. So they count only
if a setting enables it, and only for a limited time.
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
    """An operation that is not anchored yet, with its row in the queue."""

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
    """Those of *queued* that may be anchored at *now* (microseconds). An unreadable one is skipped, so that its DID can
    still be resolved."""
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
    """Those of *unpublished* that are not among *anchored*: some may have been observed since they were read."""
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

    They are applied in the order of acceptance, in which they will be anchored. Any client can send an operation on any
    DID, signed with its own key: an operation that is invalid for the current state is skipped. A DID without an
    anchored or accepted create begins with *create*, which is part of its long form.
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
