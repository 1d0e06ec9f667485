"""The handlers of the protocol's methods: ``BrokerService.query_route`` answers ``QueryRoute``.

The other modules of this package have their parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.clients.client_quirks import follows_routes, keeps_order
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.batch_codec import to_batch
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.handlers.column_chunk import ColumnChunk, to_columns
from millstream.messaging.broker.handlers.delayed_message_scheduler import DelayedMessageScheduler
from millstream.messaging.broker.handlers.filters import read_filter
from millstream.messaging.broker.handlers.pull import PullHandler, PullRequest
from millstream.messaging.broker.handlers.receive import ReceiveHandler, ReceiveRequest, chunk_messages
from millstream.messaging.broker.handlers.routes import assigned_queues, route_response
from millstream.messaging.broker.handlers.send import SendHandler, combined_status
from millstream.messaging.broker.handlers.telemetry import TelemetryHandler, long_poll
from millstream.messaging.broker.handlers.validation import (
    MAX_BORN,
    MIN_BORN,
    check_caller_id,
    check_client_type,
    check_count,
    check_group_name,
    check_invisible,
    check_polling_time,
    check_topic_name,
)
from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.broker.storage.wire_codec import DeliveryInfo, to_wire
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import (
    AckBatchRequest,
    AckBatchResponse,
    ReceiveBatchResponse,
    SendBatchRequest,
    SendBatchResponse,
    text_column,
)

NOTHING_NEW = "no new message"


class BrokerService:
    """The protocol on *core*, to which the *routes* lead."""

    def __init__(self, core: BrokerCore, delayed_messages: DelayedMessageScheduler, routes: RouteEndpoints) -> None:
        self._core = core
        self._delayed_messages = delayed_messages
        self._routes = routes
        self._sending = SendHandler(core, delayed_messages)
        self._receiving = ReceiveHandler(core)
        self._pulling = PullHandler(core)
        self.telemetry = TelemetryHandler(core)

    async def query_route(self, request: v2.QueryRouteRequest, call: CallContext) -> v2.QueryRouteResponse:
        spec = self._spec(request.topic, call)
        self._core.sessions.touch(call.client_id, self._core.clock.now()).route_queried(
            full_name(request.topic, call.namespace)
        )
        return route_response(request.topic, spec, self._endpoints(request.endpoints, call))

    async def query_assignment(
        self, request: v2.QueryAssignmentRequest, call: CallContext
    ) -> v2.QueryAssignmentResponse:
        check_group_name(full_name(request.group, call.namespace))
        spec = self._spec(request.topic, call)
        return assigned_queues(request.topic, spec, self._endpoints(request.endpoints, call))

    async def heartbeat(self, request: v2.HeartbeatRequest, call: CallContext) -> v2.HeartbeatResponse:
        check_client_type(request.client_type)
        session = self._core.sessions.touch(call.client_id, self._core.clock.now(), connection=call.connection)
        if not session.declared and request.client_type == v2.CLIENT_TYPE_UNSPECIFIED:
            raise StatusError(
                v2.UNRECOGNIZED_CLIENT_TYPE, "the client type is missing: add it to the request, or send settings first"
            )
        if request.HasField("group"):
            group = full_name(request.group, call.namespace)
            check_group_name(group)
            session.group = session.group or group
        session.kind = session.kind or request.client_type
        return v2.HeartbeatResponse(status=_ok())

    async def send_message(self, request: v2.SendMessageRequest, call: CallContext) -> v2.SendMessageResponse:
        if not request.messages:
            raise StatusError(v2.MESSAGE_CORRUPTED, "the request contains no message: send at least one")
        names = {full_name(message.topic, call.namespace) for message in request.messages}
        if len(names) > 1:
            first, second = sorted(names)[:2]
            raise StatusError(
                v2.MESSAGE_CORRUPTED,
                f"all messages of one call must be of one topic, not of {first[:80]} and {second[:80]}",
            )
        receipts = await self._sending.send(names.pop(), request.messages)
        response = v2.SendMessageResponse()
        for receipt in receipts:
            entry = response.entries.add(message_id=receipt.message_id, offset=receipt.offset)
            _set_status(entry.status, receipt.code, receipt.text)
            if receipt.transaction_id or receipt.recall_handle:
                entry.transaction_id, entry.recall_handle = receipt.transaction_id, receipt.recall_handle
        _set_summary(response.status, [(receipt.code, receipt.text) for receipt in receipts])
        return response

    async def receive_message(
        self, request: v2.ReceiveMessageRequest, call: CallContext
    ) -> AsyncIterator[v2.ReceiveMessageResponse]:
        messages = await self._receive(request, call)
        if not messages:
            yield v2.ReceiveMessageResponse(status=v2.Status(code=v2.MESSAGE_NOT_FOUND, message=NOTHING_NEW))
            return
        yield v2.ReceiveMessageResponse(status=_ok())
        for message in messages:
            yield v2.ReceiveMessageResponse(message=message)
        end = v2.ReceiveMessageResponse()
        end.delivery_timestamp.FromMicroseconds(self._core.clock.now())
        yield end

    async def _receive(self, request: v2.ReceiveMessageRequest, call: CallContext) -> list[v2.Message]:
        ask, topic = self._ask(request, call), request.message_queue.topic
        given = await self._receiving.receive(ask)
        return [
            to_wire(
                each.message,
                DeliveryInfo(topic.resource_namespace, topic.name, each.handle, each.attempt, ask.invisible),
            )
            for each in (chunk_messages(given) if isinstance(given, ColumnChunk) else given)
        ]

    # The same in batches, for our own clients

    async def send_batch(self, batch: SendBatchRequest, call: CallContext) -> SendBatchResponse:
        return await self._sending.send_batch(_name(batch.topic, batch.namespace, call), batch)

    async def receive_batch(self, request: v2.ReceiveMessageRequest, call: CallContext) -> ReceiveBatchResponse:
        given = await self._receiving.receive(msgspec.structs.replace(self._ask(request, call), columns=True))
        if not given:
            return ReceiveBatchResponse(code=v2.MESSAGE_NOT_FOUND, text=NOTHING_NEW)
        now = self._core.clock.now()
        if isinstance(given, ColumnChunk):
            return to_columns(given, now) or to_batch(chunk_messages(given), now)
        return to_batch(given, now)

    async def ack_batch(self, batch: AckBatchRequest, call: CallContext) -> AckBatchResponse:
        group, topic = _name(batch.group, batch.namespace, call), _name(batch.topic, batch.namespace, call)
        if not batch.handles.is_valid or not all(batch.handles.lengths):
            raise StatusError(
                v2.MESSAGE_CORRUPTED,
                "the number of receipt handles does not match the stated lengths, or a receipt handle is empty: send "
                "the receipt handles as they were received",
            )
        check_count(batch.handles.count)
        held, refused = self._core.check_handles(group, topic, batch.handles)
        if held:
            await self._core.finish(group, topic, held)
        if not refused:
            return AckBatchResponse(v2.OK, "OK")
        return AckBatchResponse(*combined_status([*refused.values(), *[(v2.OK, "OK")] * bool(held)]), refused)

    async def ack_message(self, request: v2.AckMessageRequest, call: CallContext) -> v2.AckMessageResponse:
        group, topic = full_name(request.group, call.namespace), full_name(request.topic, call.namespace)
        response = v2.AckMessageResponse()
        handles = text_column([entry.receipt_handle for entry in request.entries])
        held, refused = self._core.check_handles(group, topic, handles)
        for row, entry in enumerate(request.entries):
            result = response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
            _set_status(result.status, *refused.get(row, (v2.OK, "OK")))
        if held:
            await self._core.finish(group, topic, held)
        results = [(entry.status.code, entry.status.message) for entry in response.entries]
        _set_summary(response.status, results or [(v2.BAD_REQUEST, "there is nothing to acknowledge")])
        return response

    async def change_invisible_duration(
        self, request: v2.ChangeInvisibleDurationRequest, call: CallContext
    ) -> v2.ChangeInvisibleDurationResponse:
        group, topic = full_name(request.group, call.namespace), full_name(request.topic, call.namespace)
        duration = check_invisible(request.invisible_duration.ToMicroseconds(), self._core.limits, shortest=0)
        number = self._core.check_handle(group, topic, request.receipt_handle)
        handle = await self._core.hide(group, topic, number, duration)
        return v2.ChangeInvisibleDurationResponse(status=_ok(), receipt_handle=handle)

    async def forward_message_to_dead_letter_queue(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, call: CallContext
    ) -> v2.ForwardMessageToDeadLetterQueueResponse:
        group, topic = full_name(request.group, call.namespace), full_name(request.topic, call.namespace)
        number = self._core.check_handle(group, topic, request.receipt_handle)
        await self._core.move_to_dead_letters(
            group, topic, [number], f"given up after attempt {request.delivery_attempt}"
        )
        return v2.ForwardMessageToDeadLetterQueueResponse(status=_ok())

    async def end_transaction(self, request: v2.EndTransactionRequest, call: CallContext) -> v2.EndTransactionResponse:
        topic = full_name(request.topic, call.namespace)
        await self._delayed_messages.end_transaction(
            topic, request.transaction_id, request.message_id, request.resolution
        )
        return v2.EndTransactionResponse(status=_ok())

    async def recall_message(self, request: v2.RecallMessageRequest, call: CallContext) -> v2.RecallMessageResponse:
        topic = _topic_name(request.topic, call)
        message_id = await self._delayed_messages.recall(topic, request.recall_handle)
        return v2.RecallMessageResponse(status=_ok(), message_id=message_id)

    async def notify_client_termination(
        self, _request: v2.NotifyClientTerminationRequest, call: CallContext
    ) -> v2.NotifyClientTerminationResponse:
        self._core.remove_client(call.client_id)
        return v2.NotifyClientTerminationResponse(status=_ok())

    async def pull_message(
        self, request: v2.PullMessageRequest, call: CallContext
    ) -> AsyncIterator[v2.PullMessageResponse]:
        queue = request.message_queue
        asked = request.long_polling_timeout.ToMicroseconds() / 1e6
        check_polling_time(asked)
        pull = PullRequest(
            topic=_topic_name(queue.topic, call),
            queue=queue.id,
            offset=request.offset,
            count=max(1, min(request.batch_size, self._core.limits.batch)),
            poll=long_poll(self._core.limits, asked, call.left()),
            message_filter=read_filter(request.filter_expression),
        )
        messages, next_offset = await self._pulling.pull(pull)
        found = v2.Status(code=v2.MESSAGE_NOT_FOUND, message=NOTHING_NEW) if not messages else _ok()
        yield v2.PullMessageResponse(status=found)
        for message in messages:
            yield v2.PullMessageResponse(
                message=to_wire(message, DeliveryInfo(queue.topic.resource_namespace, queue.topic.name))
            )
        yield v2.PullMessageResponse(next_offset=next_offset)

    async def query_offset(self, request: v2.QueryOffsetRequest, call: CallContext) -> v2.QueryOffsetResponse:
        queue = request.message_queue
        # Not ToMicroseconds, which refuses times outside the years 1 to 9999: all messages are stored after or before.
        time = request.timestamp.seconds * MICROSECONDS + request.timestamp.nanos // 1000
        time = min(max(time, MIN_BORN), MAX_BORN)
        name = _topic_name(queue.topic, call)
        offset = await self._pulling.find_offset(name, queue.id, request.query_offset_policy, time)
        return v2.QueryOffsetResponse(status=_ok(), offset=offset)

    async def update_offset(self, request: v2.UpdateOffsetRequest, call: CallContext) -> v2.UpdateOffsetResponse:
        place = self._queue_position(request, call)
        await self._pulling.store_offset(*place, request.offset)
        return v2.UpdateOffsetResponse(status=_ok())

    async def get_offset(self, request: v2.GetOffsetRequest, call: CallContext) -> v2.GetOffsetResponse:
        return v2.GetOffsetResponse(
            status=_ok(), offset=self._pulling.stored_offset(*self._queue_position(request, call))
        )

    def _queue_position(self, request: Any, call: CallContext) -> tuple[str, str, int]:
        queue = request.message_queue
        group = full_name(request.group, call.namespace)
        check_group_name(group)
        return group, _topic_name(queue.topic, call), queue.id

    def _ask(self, request: v2.ReceiveMessageRequest, call: CallContext) -> ReceiveRequest:
        group = full_name(request.group, call.namespace)
        check_group_name(group)
        check_caller_id("attempt id", request.attempt_id)
        limits = self._core.limits
        asked = self._polling_time(request, call)
        check_polling_time(asked)
        if request.auto_renew:
            invisible = limits.renewed_for
        else:
            invisible = check_invisible(request.invisible_duration.ToMicroseconds(), limits)
        return ReceiveRequest(
            group=group,
            topic=_topic_name(request.message_queue.topic, call),
            count=max(1, min(request.batch_size, limits.batch)),
            invisible=invisible,
            client=call.client_id,
            connection=call.connection,
            renew=request.auto_renew,
            consecutive=request.auto_renew and keeps_order(call.language) and self._began_in_order(call.client_id),
            poll=long_poll(limits, asked, call.left()),
            attempt_id=request.attempt_id,
            message_filter=read_filter(request.filter_expression),
        )

    def _began_in_order(self, client_id: str) -> bool:
        """Whether the client has handled messages in order from its start, as far as is known: it was told so, and all
        topics that it declares have order. Topics without order may have been all that it had when it started, before
        the broker knew it: a client that the broker forgot, or another member had, does not start again.
        """
        session, specs = self._core.sessions.get(client_id), self._core.journal.state.topics
        if session is None or not session.began_in_order:
            return False
        return all(specs[topic].type == "FIFO" for topic in session.topics if topic in specs)

    def _polling_time(self, request: v2.ReceiveMessageRequest, call: CallContext) -> float:
        """For how many seconds a receive is to wait: as it says, else as its client's settings do (Go's)."""
        if request.HasField("long_polling_timeout"):
            return request.long_polling_timeout.ToMicroseconds() / 1e6
        session = self._core.sessions.get(call.client_id)
        if session is not None and session.settings is not None:
            declared = session.settings[0].subscription
            if declared.HasField("long_polling_timeout"):
                return declared.long_polling_timeout.ToMicroseconds() / 1e6
        return self._core.limits.longest_poll / 1e6

    def _spec(self, topic: v2.Resource, call: CallContext) -> TopicSpec:
        return self._core.topic(_topic_name(topic, call)).spec

    def _endpoints(self, asked: v2.Endpoints, call: CallContext) -> v2.Endpoints:
        return self._routes.choose(asked, is_encrypted=call.is_encrypted, follows=follows_routes(call.language))


def _topic_name(topic: v2.Resource, call: CallContext) -> str:
    """The full name of *topic*. Raises ILLEGAL_TOPIC."""
    name = full_name(topic, call.namespace)
    check_topic_name(name)
    return name


def _name(name: str, namespace: str, call: CallContext) -> str:
    return full_name(v2.Resource(name=name, resource_namespace=namespace), call.namespace)


def _ok() -> v2.Status:
    return v2.Status(code=v2.OK, message="OK")


def _set_summary(status: v2.Status, parts: Sequence[tuple[int, str]]) -> None:
    _set_status(status, *combined_status(parts))


def _set_status(status: v2.Status, code: int, text: str) -> None:
    status.code, status.message = code, text  # type: ignore[assignment]
