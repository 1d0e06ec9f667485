"""The common base of both kinds of consumers: a group, subscriptions, and calls about single messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.core.clock import MICROSECONDS, Clock
from millstream.messaging.client.ack_batcher import AckBatcher, Errors
from millstream.messaging.client.batch_codec import from_batch, refusals
from millstream.messaging.client.call_parts import call_in_parts
from millstream.messaging.client.client import Client
from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import (
    ClientError,
    PartialFailureError,
    ServerFailedError,
    TransportError,
    code_error,
    status_error,
)
from millstream.messaging.client.message import Received, from_wire
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.subscription import Filter, read_filter
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, AckBatchRequest, text_column

MIN_POLL_SECONDS: Final = 5.0
"""Apache's proxy waits at least so long where there is no message, and refuses a call whose deadline is nearer."""


class Consumer(Client):
    """A consumer of *group* at *endpoints*; *subscriptions* maps topics to what is wanted of them."""

    def __init__(
        self,
        endpoints: str,
        group: str,
        subscriptions: Mapping[str, str | Filter],
        *,
        options: Options = DEFAULTS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(endpoints, subscriptions, options=options, clock=clock)
        self.group = group
        self._ack_batcher = AckBatcher(self._ack_batch)
        self.subscriptions = {topic: read_filter(wanted) for topic, wanted in subscriptions.items()}
        self.refused: set[str] = set()
        """Topics that the client may not receive from: servers refuse settings that declare one of them."""

    def group_resource(self) -> v2.Resource:
        return self.resource(self.group)

    def declare(self, settings: v2.Settings) -> None:
        settings.subscription.group.CopyFrom(self.group_resource())
        for topic, wanted in sorted(self.subscriptions.items()):
            if topic not in self.refused:
                settings.subscription.subscriptions.add(topic=self.resource(topic), expression=wanted.to_wire())

    async def receive_from(
        self, endpoints: Endpoints, request: v2.ReceiveMessageRequest, poll: float
    ) -> list[Received]:
        """The messages that *request* brings; none is no error. Raises :class:`ClientError`."""
        timeout = self.options.request_timeout
        if endpoints in self.batch_servers:
            return await self._receive_batch(endpoints, request, poll + timeout)
        frames = self.transport(endpoints).stream("ReceiveMessage", request, max(poll, MIN_POLL_SECONDS) + timeout)
        found: list[Received] = []
        async for frame in frames:
            if frame.HasField("message"):
                found.append(from_wire(frame.message, endpoints))
            elif frame.HasField("delivery_timestamp"):
                self._measure(found, frame.delivery_timestamp.ToMicroseconds())
            elif frame.HasField("status") and frame.status.code != v2.MESSAGE_NOT_FOUND:
                error = status_error(frame.status)
                if error is not None:
                    raise error
        return found

    async def _receive_batch(
        self, endpoints: Endpoints, request: v2.ReceiveMessageRequest, seconds: float
    ) -> list[Received]:
        try:
            batch, request_id = await self.transport(endpoints).batch(RECEIVE, request, seconds)
        except TransportError:
            self.batch_servers.discard(endpoints)  # until it offers it again: another server may be there by now
            raise
        error = None if batch.code == v2.MESSAGE_NOT_FOUND else code_error(batch.code, batch.text, request_id)
        if error is not None:
            raise error
        found = from_batch(batch, request.message_queue.topic.name, endpoints)
        self._measure(found, batch.delivered)
        return found

    def _measure(self, messages: Sequence[Received], delivered: int) -> None:
        if messages and delivered and self.metrics is not None:
            self.metrics.delivered(messages[0].topic, (self.clock.now() - delivered) / MICROSECONDS)

    async def acknowledge(self, messages: Sequence[Received]) -> None:
        """*messages*, all of one topic and server, are done. Raises :class:`ClientError`.

        At a server that takes batches, acknowledgements that come while others are under way share a call.
        """
        in_batch = self._server_of(messages[0]) in self.batch_servers
        errors = await (self._ack_batcher.acknowledge(messages) if in_batch else self._ack_each(messages))
        failed = [error for error in errors if error is not None]
        if failed and len(failed) == len(messages):
            raise failed[0]
        if failed:
            raise PartialFailureError(errors, "acknowledged")

    async def _ack_each(self, messages: Sequence[Received]) -> Errors:
        first = messages[0]

        async def acknowledge(part: slice) -> Errors:
            request = v2.AckMessageRequest(group=self.group_resource(), topic=self.resource(first.topic))
            for message in messages[part]:
                request.entries.add(message_id=message.message_id, receipt_handle=message.receipt_handle)
            return await self._ack_part(request, self._server_of(first))

        return await call_in_parts(len(messages), acknowledge)

    async def _ack_part(self, request: v2.AckMessageRequest, server: Endpoints) -> Errors:
        transport, count = self.transport(server), len(request.entries)
        response, request_id = await transport.exchange("AckMessage", request, self.options.request_timeout)
        if len(response.entries) != count:
            error = status_error(response.status, request_id)
            text = f"the server returned {len(response.entries):,} results for {count:,} acknowledgements"
            raise error or ServerFailedError(text, request_id=request_id)
        results = list(response.entries)
        by_handle = {result.receipt_handle: result for result in results}
        handles = [entry.receipt_handle for entry in request.entries]
        if by_handle.keys() == set(handles):  # Apache's with enableBatchAck has another order
            results = [by_handle[handle] for handle in handles]
        return [status_error(result.status, request_id) for result in results]

    async def _ack_batch(self, messages: Sequence[Received]) -> Errors:
        first = messages[0]
        handles = text_column([message.receipt_handle for message in messages])
        batch = AckBatchRequest(self.options.namespace, self.group, first.topic, handles)
        transport = self.transport(self._server_of(first))
        try:
            answer, request_id = await transport.batch(ACK, batch, self.options.request_timeout)
        except TransportError:
            self.batch_servers.discard(self._server_of(first))
            raise
        error = code_error(answer.code, answer.text, request_id)
        if error is not None and not answer.refused:
            raise error
        errors: list[ClientError | None] = [None] * len(messages)
        for row, refusal in refusals(answer, len(messages), request_id):
            errors[row] = refusal
        return errors

    async def hide(self, message: Received, seconds: float) -> str:
        """Let *message* come back in *seconds* from now; its new receipt handle. Raises :class:`ClientError`."""
        request = v2.ChangeInvisibleDurationRequest(
            group=self.group_resource(),
            topic=self.resource(message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
        )
        request.invisible_duration.FromMilliseconds(round(seconds * 1000))
        transport = self.transport(self._server_of(message))
        response = await transport.call_checked("ChangeInvisibleDuration", request, self.options.request_timeout)
        handle: str = response.receipt_handle
        return handle

    async def move_to_dead_letters(self, message: Received, attempt: int, most: int) -> None:
        """Move *message* to the dead letters after *attempt* of *most* attempts. Raises :class:`ClientError`."""
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=self.group_resource(),
            topic=self.resource(message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            delivery_attempt=attempt,
            max_delivery_attempts=most,
        )
        transport = self.transport(self._server_of(message))
        await transport.call_checked("ForwardMessageToDeadLetterQueue", request, self.options.request_timeout)

    def _server_of(self, message: Received) -> Endpoints:
        """The server at which *message* is settled."""
        return self.server_of(message.topic, message.endpoints)
