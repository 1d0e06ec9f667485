"""The handler of each method of the protocol: one table for each way in which a method is called."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.handlers.calls import BrokerService
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND, BatchMethod
from millstream.messaging.protocol.descriptor_methods import methods

Request = TypeVar("Request")
Response = TypeVar("Response")


class UnaryCall(msgspec.Struct, Generic[Request, Response], frozen=True):
    """A method that takes one ``request`` and returns one ``response``, and its handler."""

    request: type[Request]
    response: type[Response]
    handler: Callable[[BrokerService, Request, CallContext], Awaitable[Response]]


class StreamCall(msgspec.Struct, Generic[Request, Response], frozen=True):
    """A method that takes one ``request`` and returns a stream of ``response`` messages, and its handler."""

    request: type[Request]
    response: type[Response]
    handler: Callable[[BrokerService, Request, CallContext], AsyncIterator[Response]]


class BatchCall(msgspec.Struct, Generic[Request, Response], frozen=True):
    """A method of the batch service and its handler."""

    method: BatchMethod
    handler: Callable[[BrokerService, Request, CallContext], Awaitable[Response]]


TELEMETRY: Final = "Telemetry"
"""The one method with a stream in each direction; see :mod:`millstream.messaging.broker.handlers.telemetry`."""

UNSUPPORTED: Final = frozenset({"SyncLiteSubscription"})
"""Methods that this broker answers with the status UNSUPPORTED."""

_SERVED = [method for method in methods().values() if method.name not in {TELEMETRY, *UNSUPPORTED}]


def _handler(name: str) -> Any:
    """The handler of the method *name*: the method of :class:`BrokerService` with that name in snake case."""
    return getattr(BrokerService, re.sub("(?<!^)(?=[A-Z])", "_", name).lower())


UNARY_CALLS: Final[Mapping[str, UnaryCall[Any, Any]]] = {
    method.name: UnaryCall(method.request, method.response, _handler(method.name))
    for method in _SERVED
    if not method.streams_responses
}
"""Methods with one request and one response."""

STREAM_CALLS: Final[Mapping[str, StreamCall[Any, Any]]] = {
    method.name: StreamCall(method.request, method.response, _handler(method.name))
    for method in _SERVED
    if method.streams_responses
}
"""Methods with one request and a stream of responses."""

BATCH_CALLS: Final[Mapping[str, BatchCall[Any, Any]]] = {
    SEND.name: BatchCall(SEND, BrokerService.send_batch),
    RECEIVE.name: BatchCall(RECEIVE, BrokerService.receive_batch),
    ACK.name: BatchCall(ACK, BrokerService.ack_batch),
}
"""The methods of the batch service, for Millstream's own clients."""
