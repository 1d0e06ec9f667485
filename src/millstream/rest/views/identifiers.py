"""Decentralized identifiers: what a DID resolves to, and where an operation on one stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.decoding import prepared
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Listing, Name
from millstream.status.models import StateCount

if TYPE_CHECKING:
    from millstream.anchoring.registry import DidRegistry

endpoints = EndpointRegistry()


class UnknownDidError(NotFoundError):
    """Nothing is known of this DID."""


class NoRegistryError(MillstreamError):
    """The registry of identifiers needs more packages: pip install 'millstream[sidetree]'."""


class NotFollowingError(NotFoundError):
    """The registry of this node does not follow a ledger: set registry.follow.ledger to the ledger of another node."""


class DidQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DID, in its short or long form."""

    did: Name


class OperationQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``id`` that the operation got when it was accepted."""

    id: Name


class Resolution(msgspec.Struct, frozen=True):
    """The document of a DID, with its resolution metadata (DID Resolution)."""

    resolution: Mapping[str, Any]


class OperationRow(msgspec.Struct, frozen=True):
    """The state of an operation; ``accepted_at`` in microseconds. ``effect`` is the effect of an observed operation on
    its DID: ``applied``, or ``no effect`` with the ``reason``.
    """

    id: str
    suffix: str
    type: str
    state: str
    accepted_at: int
    retries: int
    anchor: int | None
    index: int | None
    reason: str | None
    effect: str | None


class Following(msgspec.Struct, frozen=True):
    """The ledger that the registry follows: ``position`` is the last observed entry, ``behind`` the number of later
    entries at the last read, at ``checked_at`` (microseconds). ``error`` is the error of that read; ``chain`` is
    whether its entries are hash-chained.
    """

    ledger: str
    profile: str
    method: str
    position: int
    behind: int
    chain: bool | None
    checked_at: int | None
    error: str | None


@endpoints.get("/identifiers", DidQuery)
def resolve(app: AppContext, request: ApiRequest[DidQuery, Any]) -> Resolution:
    """Resolve a DID."""
    found = registry_of(app).history.resolve(request.query.did)
    if found is None:
        raise UnknownDidError(
            f"unknown DID {request.query.did[:100]!r}: no anchored operation creates it; check the DID, give its long "
            "form, or try again when its create operation is anchored"
        )
    return Resolution(msgspec.to_builtins(found))


@endpoints.get("/identifiers/following")
def following(app: AppContext, _ask: ApiRequest[Any, Any]) -> Following:
    """Show the position of the registry in the ledger that it follows."""
    state = app.node.registry.follow_state()
    if state is None:
        raise NotFollowingError
    return Following(**msgspec.structs.asdict(state))


@endpoints.get("/operations/states")
def operation_states(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[StateCount]:
    """Count the operations on identifiers of this node in each state."""
    rows = [StateCount(state, count) for state, count in registry_of(app).store.counts().items()]
    return Listing(rows, total=len(rows))


@endpoints.get("/operations/{id}", OperationQuery)
def operation(app: AppContext, request: ApiRequest[OperationQuery, Any]) -> OperationRow:
    """Show the state of an operation on an identifier."""
    registry_of(app)
    status = app.node.registry.operation_status(request.query.id)
    return msgspec.convert(msgspec.to_builtins(status), prepared(OperationRow))


def registry_of(app: AppContext) -> DidRegistry:
    """The registry of the node. Raises :class:`NoRegistryError` where its packages are missing."""
    try:
        return app.node.registry.instance
    except ImportError as error:
        raise NoRegistryError from error
