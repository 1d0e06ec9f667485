"""Which handler serves which method: one table for each way in which a method is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millstream.messaging.broker.handlers.broker_service import BrokerService
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND, BatchMethod

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


UNARY_CALLS: Final[Mapping[str, UnaryCall[Any, Any]]] = {
    "QueryRoute": UnaryCall(v2.QueryRouteRequest, v2.QueryRouteResponse, BrokerService.query_route),
    "Heartbeat": UnaryCall(v2.HeartbeatRequest, v2.HeartbeatResponse, BrokerService.heartbeat),
    "SendMessage": UnaryCall(v2.SendMessageRequest, v2.SendMessageResponse, BrokerService.send_message),
    "QueryAssignment": UnaryCall(v2.QueryAssignmentRequest, v2.QueryAssignmentResponse, BrokerService.query_assignment),
    "AckMessage": UnaryCall(v2.AckMessageRequest, v2.AckMessageResponse, BrokerService.ack_message),
    "ForwardMessageToDeadLetterQueue": UnaryCall(
        v2.ForwardMessageToDeadLetterQueueRequest,
        v2.ForwardMessageToDeadLetterQueueResponse,
        BrokerService.forward_message_to_dead_letter_queue,
    ),
    "UpdateOffset": UnaryCall(v2.UpdateOffsetRequest, v2.UpdateOffsetResponse, BrokerService.update_offset),
    "GetOffset": UnaryCall(v2.GetOffsetRequest, v2.GetOffsetResponse, BrokerService.get_offset),
    "QueryOffset": UnaryCall(v2.QueryOffsetRequest, v2.QueryOffsetResponse, BrokerService.query_offset),
    "EndTransaction": UnaryCall(v2.EndTransactionRequest, v2.EndTransactionResponse, BrokerService.end_transaction),
    "NotifyClientTermination": UnaryCall(
        v2.NotifyClientTerminationRequest,
        v2.NotifyClientTerminationResponse,
        BrokerService.notify_client_termination,
    ),
    "ChangeInvisibleDuration": UnaryCall(
        v2.ChangeInvisibleDurationRequest,
        v2.ChangeInvisibleDurationResponse,
        BrokerService.change_invisible_duration,
    ),
    "RecallMessage": UnaryCall(v2.RecallMessageRequest, v2.RecallMessageResponse, BrokerService.recall_message),
}
"""Methods with one request and one response."""

STREAM_CALLS: Final[Mapping[str, StreamCall[Any, Any]]] = {
    "ReceiveMessage": StreamCall(v2.ReceiveMessageRequest, v2.ReceiveMessageResponse, BrokerService.receive_message),
    "PullMessage": StreamCall(v2.PullMessageRequest, v2.PullMessageResponse, BrokerService.pull_message),
}
"""Methods with one request and a stream of responses."""

TELEMETRY: Final = "Telemetry"
"""The one method with a stream in each direction; see :mod:`millstream.messaging.broker.handlers.telemetry`."""

UNSUPPORTED: Final = frozenset({"SyncLiteSubscription"})
"""Methods that this broker answers with the status UNSUPPORTED."""

BATCH_CALLS: Final[Mapping[str, BatchCall[Any, Any]]] = {
    SEND.name: BatchCall(SEND, BrokerService.send_batch),
    RECEIVE.name: BatchCall(RECEIVE, BrokerService.receive_batch),
    ACK.name: BatchCall(ACK, BrokerService.ack_batch),
}
"""The methods of the batch service, for Millstream's own clients."""
