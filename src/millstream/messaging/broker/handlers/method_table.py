"""The handler of each method and the permission that it needs: one table for each way in which a method is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millstream.messaging.broker.handlers.broker_service import BrokerService
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.security.required_permissions import (
    CONSUME,
    CONSUME_QUEUE,
    PUBLISH,
    PULL,
    USE_GROUP,
    RequiredPermission,
    batch_group_of,
    batch_topic_of,
    message_topics_of,
    queue_topic_of,
    topic_of,
)
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND, BatchMethod

Request = TypeVar("Request")
Response = TypeVar("Response")


class UnaryCall(msgspec.Struct, Generic[Request, Response], frozen=True):
    """A method that takes one ``request`` and returns one ``response``, and its handler."""

    request: type[Request]
    response: type[Response]
    handler: Callable[[BrokerService, Request, CallContext], Awaitable[Response]]
    needs: RequiredPermission


class StreamCall(msgspec.Struct, Generic[Request, Response], frozen=True):
    """A method that takes one ``request`` and returns a stream of ``response`` messages, and its handler."""

    request: type[Request]
    response: type[Response]
    handler: Callable[[BrokerService, Request, CallContext], AsyncIterator[Response]]
    needs: RequiredPermission


class BatchCall(msgspec.Struct, Generic[Request, Response], frozen=True):
    """A method of the batch service and its handler."""

    method: BatchMethod
    handler: Callable[[BrokerService, Request, CallContext], Awaitable[Response]]
    needs: RequiredPermission


UNARY_CALLS: Final[Mapping[str, UnaryCall[Any, Any]]] = {
    "QueryRoute": UnaryCall(
        v2.QueryRouteRequest, v2.QueryRouteResponse, BrokerService.query_route, RequiredPermission("either", topic_of)
    ),
    "Heartbeat": UnaryCall(v2.HeartbeatRequest, v2.HeartbeatResponse, BrokerService.heartbeat, USE_GROUP),
    "SendMessage": UnaryCall(
        v2.SendMessageRequest,
        v2.SendMessageResponse,
        BrokerService.send_message,
        RequiredPermission("publish", message_topics_of),
    ),
    "QueryAssignment": UnaryCall(
        v2.QueryAssignmentRequest, v2.QueryAssignmentResponse, BrokerService.query_assignment, CONSUME
    ),
    "AckMessage": UnaryCall(v2.AckMessageRequest, v2.AckMessageResponse, BrokerService.ack_message, CONSUME),
    "ForwardMessageToDeadLetterQueue": UnaryCall(
        v2.ForwardMessageToDeadLetterQueueRequest,
        v2.ForwardMessageToDeadLetterQueueResponse,
        BrokerService.forward_message_to_dead_letter_queue,
        CONSUME,
    ),
    "UpdateOffset": UnaryCall(
        v2.UpdateOffsetRequest, v2.UpdateOffsetResponse, BrokerService.update_offset, CONSUME_QUEUE
    ),
    "GetOffset": UnaryCall(v2.GetOffsetRequest, v2.GetOffsetResponse, BrokerService.get_offset, CONSUME_QUEUE),
    "QueryOffset": UnaryCall(
        v2.QueryOffsetRequest,
        v2.QueryOffsetResponse,
        BrokerService.query_offset,
        RequiredPermission("subscribe", queue_topic_of),
    ),
    "EndTransaction": UnaryCall(
        v2.EndTransactionRequest, v2.EndTransactionResponse, BrokerService.end_transaction, PUBLISH
    ),
    "NotifyClientTermination": UnaryCall(
        v2.NotifyClientTerminationRequest,
        v2.NotifyClientTerminationResponse,
        BrokerService.notify_client_termination,
        USE_GROUP,
    ),
    "ChangeInvisibleDuration": UnaryCall(
        v2.ChangeInvisibleDurationRequest,
        v2.ChangeInvisibleDurationResponse,
        BrokerService.change_invisible_duration,
        CONSUME,
    ),
    "RecallMessage": UnaryCall(
        v2.RecallMessageRequest, v2.RecallMessageResponse, BrokerService.recall_message, PUBLISH
    ),
}
"""Methods with one request and one response."""

STREAM_CALLS: Final[Mapping[str, StreamCall[Any, Any]]] = {
    "ReceiveMessage": StreamCall(
        v2.ReceiveMessageRequest, v2.ReceiveMessageResponse, BrokerService.receive_message, CONSUME_QUEUE
    ),
    "PullMessage": StreamCall(v2.PullMessageRequest, v2.PullMessageResponse, BrokerService.pull_message, PULL),
}
"""Methods with one request and a stream of responses."""

TELEMETRY: Final = "Telemetry"
"""The one method with a stream in each direction; see :mod:`millstream.messaging.broker.handlers.telemetry`."""

UNSUPPORTED: Final[Mapping[str, RequiredPermission]] = {"SyncLiteSubscription": CONSUME}
"""Methods that this broker answers with the status UNSUPPORTED, and the permission that they would need."""

BATCH_CALLS: Final[Mapping[str, BatchCall[Any, Any]]] = {
    SEND.name: BatchCall(SEND, BrokerService.send_batch, RequiredPermission("publish", batch_topic_of)),
    RECEIVE.name: BatchCall(RECEIVE, BrokerService.receive_batch, CONSUME_QUEUE),
    ACK.name: BatchCall(ACK, BrokerService.ack_batch, RequiredPermission("subscribe", batch_topic_of, batch_group_of)),
}
"""The methods of the batch service, for Millstream's own clients."""

REQUIRED_PERMISSIONS: Final[Mapping[str, RequiredPermission]] = {
    **{name: call.needs for name, call in UNARY_CALLS.items()},
    **{name: call.needs for name, call in STREAM_CALLS.items()},
    **{call.method.path: call.needs for call in BATCH_CALLS.values()},
    TELEMETRY: RequiredPermission("none"),  # what a client declares is checked as it comes: check_settings
    **UNSUPPORTED,
}
"""The permission that each method needs: methods of the protocol by name, those of the batch service by path."""
