"""The producer: steps 1 to 12 of the workflow document."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeGuard

import msgspec

from millstream.core import tracing
from millstream.core.clock import Clock
from millstream.messaging.client.backoff import Backoff, read_backoff
from millstream.messaging.client.batch_codec import read_stored, to_batch
from millstream.messaging.client.call_parts import MAX_SINGLE_CALLS, call_in_parts, call_one_by_one
from millstream.messaging.client.client import Client
from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import (
    BadRequestError,
    ClientError,
    PartialFailureError,
    PayloadError,
    ServerFailedError,
    ThrottledError,
    TransportError,
    is_definite,
    may_be_done,
    status_error,
    unknown_result,
)
from millstream.messaging.client.message import Message, MessageStamp, Receipt, Received, from_wire, to_wire
from millstream.messaging.client.message_ids import MessageIds
from millstream.messaging.client.options import DEFAULTS, Options, seconds_of
from millstream.messaging.client.route import Queue, candidates, check_kind, group_candidate
from millstream.messaging.client.send_batcher import Batching, Results, SendBatcher
from millstream.messaging.client.transaction import Transaction
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import SEND

Resolution = Literal["commit", "rollback", "unknown"]
Checker = Callable[[Received], Awaitable[Resolution]]
_LONGER = 4
"""Each pause before a message is sent again is so many times the pause before."""

_log = logging.getLogger(__name__)


class Producer(Client):
    """Sends messages to the servers at *endpoints* (``host:port``).

    *topics* are prepared at the start; others when they are first sent to. *checker* is asked how a transaction ends
    whose end the server has not heard of.

    The messages of a message group keep the order in which they were sent. At Millstream's broker, messages that are
    sent at the same time travel together, at most *batch* of them and *batch_bytes* bytes of bodies (and characters
    of their other fields) in one call: what is sent while other calls are under way, unless *batch* is 1; after a call
    with several messages also what is sent by coroutines that are ready. None waits longer for company, except with
    *linger* (seconds, or a timedelta): then each waits for so long. A call with several messages goes on if one sender
    is cancelled. Other servers get each message in a call of its own: Apache's gives all messages of one call the id
    and the properties of the first one, and no message group.

    >>> async with Producer("127.0.0.1:8081", ["orders"]) as producer:  # doctest: +SKIP
    ...     receipt = await producer.send(Message("orders", b"one coffee", message_group="table-4"))
    """

    kind: ClassVar[int] = v2.PRODUCER

    def __init__(
        self,
        endpoints: str,
        topics: Iterable[str] = (),
        *,
        checker: Checker | None = None,
        linger: float | timedelta | None = None,
        batch: int = 1000,
        batch_bytes: int = 1 << 20,
        options: Options = DEFAULTS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(endpoints, topics, options=options, clock=clock)
        self._checker = checker
        self._lingers, self._may_batch = linger is not None, batch > 1
        self._send_batcher = SendBatcher(_batching(linger or 0.0, batch, batch_bytes), self._send_alike)
        self._under_way = 0
        self._is_idle = asyncio.Event()
        self._ids = MessageIds(self.clock)
        self._host = socket.gethostname()
        self._turns = itertools.count(random.randrange(1000))
        self._isolated: set[Endpoints] = set()
        self._backoff = Backoff(options.attempts)
        self._validates = True
        self._max_body = 4 << 20

    @property
    def isolated(self) -> frozenset[Endpoints]:
        """The servers that have failed and not yet answered a heartbeat."""
        return frozenset(self._isolated)

    async def send(self, message: Message) -> Receipt:
        """Send *message*, and try again as the workflow has it. Raises :class:`ClientError`."""
        self.require_running()
        with tracing.span("send", topic=message.topic) as trace:
            message = _with_trace(message, trace)
            if self._is_batched(message):
                self._check_size(len(message.body))
                return await self._send_batcher.send(message)
            (result,) = await self._send([message], message.kind)
            if isinstance(result, ClientError):
                raise result
            return result

    async def send_many(self, messages: Sequence[Message]) -> list[Receipt]:
        """Send *messages*, all of one topic and type and one message group at most, in one call.

        Raises :class:`PartialFailureError` where some were not stored, which has the result of each, else the
        :class:`ClientError` that all share.
        """
        self.require_running()
        if not messages:
            return []
        if len({(each.topic, each.message_group, each.deliver_at is None) for each in messages}) > 1:
            raise BadRequestError(
                "the messages of one call must have one topic, one type, and at most one message group"
            )
        with tracing.span("send", topic=messages[0].topic, messages=len(messages)) as trace:
            traced = messages if trace is None else [_with_trace(each, trace) for each in messages]
            results = await self._send(traced, messages[0].kind)
        if _are_receipts(results):
            return results
        failed = [result for result in results if isinstance(result, ClientError)]
        if len(failed) == len(results):
            raise failed[0]
        if failed:
            raise PartialFailureError(results)
        return [result for result in results if isinstance(result, Receipt)]

    async def flush(self) -> None:
        """Send what lingers at once, and return when all of it has its result."""
        self.require_running()
        await self._send_batcher.flush()

    async def begin(self, message: Message) -> Transaction:
        """Send *message* as the half of a transaction: no consumer gets it before :meth:`Transaction.commit`.

        Never retried: one that failed may have been stored. Raises :class:`ClientError`.
        """
        self.require_running()
        if self._checker is None:
            raise BadRequestError(
                "transactions require a producer with a checker, which returns the result of a transaction"
            )
        if message.kind != v2.NORMAL:
            raise BadRequestError("a message in a transaction must not have a message group or a delivery time")
        (result,) = await self._send([message], v2.TRANSACTION)
        if isinstance(result, ClientError):
            raise result
        return Transaction(message.topic, result, self._end_transaction)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message before its time; its message id. Raises :class:`ClientError`."""
        self.require_running()
        request = v2.RecallMessageRequest(topic=self.resource(topic), recall_handle=recall_handle)
        transport = self.transport(self.access_point)
        response = await transport.call_checked("RecallMessage", request, self.options.request_timeout)
        found: str = response.message_id
        return found

    # The client's hooks

    def declare(self, settings: v2.Settings) -> None:
        settings.publishing.topics.extend(map(self.resource, sorted(self.topics)))
        settings.publishing.max_body_size = self._max_body
        settings.publishing.validate_message_type = self._validates

    def apply_settings(self, settings: v2.Settings) -> None:
        self._validates = settings.publishing.validate_message_type
        self._max_body = settings.publishing.max_body_size or self._max_body
        if settings.HasField("backoff_policy"):
            self._backoff = read_backoff(settings.backoff_policy, attempts=self.options.attempts)

    async def on_close(self) -> None:
        """Send what lingers, and wait for what is under way."""
        await self._send_batcher.flush()
        while self._under_way:
            self._is_idle.clear()
            await self._is_idle.wait()

    def on_healthy(self, endpoints: Endpoints) -> None:
        self._isolated.discard(endpoints)

    async def on_command(self, endpoints: Endpoints, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        if command.HasField("recover_orphaned_transaction_command"):
            self.spawn(self._recover(endpoints, command.recover_orphaned_transaction_command))
            return None
        return await super().on_command(endpoints, command)

    # Sending

    def _is_batched(self, message: Message) -> bool:
        """Whether *message* is to go with others that are sent now."""
        if message.message_group:  # always: one that went by itself could overtake those before it
            return True
        if message.deliver_at is not None or not self.millstream_servers:
            return False
        if self._lingers:
            return True
        has_company = bool(self._under_way) or self._send_batcher.had_company
        return has_company and self._may_batch and bool(self.batch_servers)

    async def _send_alike(self, messages: Sequence[Message]) -> Results:
        return await self._send(messages, messages[0].kind)

    async def _send(self, messages: Sequence[Message], kind: int) -> Results:
        """The results of *messages*, after all attempts; those that are stored are not sent again."""
        topic = messages[0].topic
        self._check_size(max([len(message.body) for message in messages]))
        self._under_way += 1
        is_new = topic not in self.topics
        try:
            self.topics.add(topic)  # before its route is known: the servers of the route are told of it
            queues = await self._candidates(topic, messages[0].message_group)
            if self._validates:
                check_kind(queues[0], kind, topic)
            results = await self._attempts(queues, messages, kind)
            if is_new:
                self._forget_refused(topic, results[0])
            return results
        except ClientError as error:
            if is_new:
                self._forget_refused(topic, error)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._is_idle.set()

    def _forget_refused(self, topic: str, result: Receipt | ClientError) -> None:
        """Declare *topic* no more if *result* says that it is not for this client: servers refuse the settings of a
        client with such a topic, and take no others from it."""
        if isinstance(result, ClientError) and (result.code // 100 in (403, 404) or result.code == v2.ILLEGAL_TOPIC):
            self.topics.discard(topic)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise PayloadError(
                f"a body of {size:,} bytes exceeds the server's limit of {self._max_body:,} bytes: split the body, or "
                "send a reference to the content"
            )

    async def _attempts(self, queues: Sequence[Queue], messages: Sequence[Message], kind: int) -> Results:
        """Send *messages* to one of *queues* after another, as often as it makes sense.

        A message that an earlier attempt may have stored has an error that says so, however the last attempt failed.
        """
        topic, ids = messages[0].topic, self._ids.take(len(messages))
        results: list[Receipt | ClientError] = []
        unknown: dict[int, ClientError] = {}
        left: Sequence[int] = range(len(messages))
        most = 1 if kind == v2.TRANSACTION else self._backoff.attempts
        for attempt in itertools.count(1):
            queue = queues[(attempt - 1) % len(queues)]
            if attempt == 1:
                results = list(await self._attempt(queue, messages, ids, kind))
            else:
                found = await self._attempt(queue, [messages[row] for row in left], [ids[row] for row in left], kind)
                for row, result in zip(left, found, strict=True):
                    results[row] = result
            if _are_receipts(results):
                break
            failed = {row: error for row in left if (error := _open_error(results[row])) is not None}
            if not failed:
                break
            self._isolated.add(queue.endpoints)
            if attempt >= most:
                break
            unknown.update((row, error) for row, error in failed.items() if may_be_done(error))
            left, first = list(failed), next(iter(failed.values()))
            _log.info("attempt %d to send to %s failed, trying again: %s", attempt, topic, first)
            if isinstance(first, ThrottledError):
                await asyncio.sleep(self._backoff.delay(attempt + 1))
            elif queues[attempt % len(queues)].endpoints == queue.endpoints:
                await asyncio.sleep(self.options.intervals.resend * _LONGER ** (attempt - 1))
                queues = await self._fresh_candidates(topic, messages[0].message_group)
        for row, earlier in unknown.items():
            if isinstance(last := results[row], ClientError) and not may_be_done(last):
                advice = "if you send it again, consumers may get it twice"
                results[row] = unknown_result(earlier, last, "the message may have been stored", advice)
        return results

    async def _fresh_candidates(self, topic: str, message_group: str) -> Sequence[Queue]:
        """The queues to try by the present route, which may name another server; by the last one if it is unknown."""
        with contextlib.suppress(ClientError):
            await self.fetch_route(topic)
        return await self._candidates(topic, message_group)

    async def _candidates(self, topic: str, message_group: str) -> Sequence[Queue]:
        route = await self.route(topic)
        if message_group:
            return [group_candidate(route, message_group)]
        return candidates(route, next(self._turns), self._isolated, self._backoff.attempts)

    async def _attempt(self, queue: Queue, messages: Sequence[Message], ids: Sequence[str], kind: int) -> Results:
        begin, topic = self.clock.monotonic(), messages[0].topic
        in_batch = len(messages) > 1 and kind in (v2.NORMAL, v2.FIFO) and queue.endpoints in self.batch_servers
        try:
            results = await (self._send_batch if in_batch else self._send_plain)(queue, messages, ids, kind)
        except ClientError as error:
            if isinstance(error, TransportError):
                # Until it offers them again: another server may be there by now.
                self.batch_servers.discard(queue.endpoints)
            results = [error] * len(messages)
        if self.metrics is not None:
            succeeded = _are_receipts(results)
            self.metrics.sent(topic, self.clock.monotonic() - begin, succeeded=succeeded)
        return results

    async def _send_batch(self, queue: Queue, messages: Sequence[Message], ids: Sequence[str], kind: int) -> Results:
        stamp = MessageStamp(
            message_id="", kind=kind, namespace=self.options.namespace, born=self.clock.now(), host=self._host
        )
        batch = to_batch(messages, ids, stamp)
        transport = self.transport(queue.endpoints)
        answer, request_id = await transport.batch(SEND, batch, self.options.request_timeout)
        return read_stored(answer, ids, queue, request_id)

    async def _send_plain(self, queue: Queue, messages: Sequence[Message], ids: Sequence[str], kind: int) -> Results:
        """Send by the calls of the RocketMQ protocol."""

        async def send(part: slice) -> Results:
            return await self._send_part(queue, messages[part], ids[part], kind)

        if queue.endpoints in self.millstream_servers or len(messages) == 1:
            return await call_in_parts(len(messages), send, _first_open if kind == v2.FIFO else None)
        at_once = 1 if kind == v2.FIFO else MAX_SINGLE_CALLS
        return await call_one_by_one(len(messages), send, at_once, _first_open)

    async def _send_part(self, queue: Queue, messages: Sequence[Message], ids: Sequence[str], kind: int) -> Results:
        born, namespace = self.clock.now(), self.options.namespace
        request = v2.SendMessageRequest(
            messages=[
                to_wire(
                    message,
                    MessageStamp(message_id=message_id, kind=kind, namespace=namespace, born=born, host=self._host),
                )
                for message, message_id in zip(messages, ids, strict=True)
            ]
        )
        for wire in request.messages:
            wire.system_properties.queue_id = queue.id
        transport = self.transport(queue.endpoints)
        response, request_id = await transport.exchange("SendMessage", request, self.options.request_timeout)
        return _read_results(response, queue, ids, request_id)

    # Transactions

    async def _end_transaction(
        self, topic: str, receipt: Receipt, resolution: int, source: int = v2.SOURCE_CLIENT
    ) -> None:
        kind: Any = resolution
        origin: Any = source
        request = v2.EndTransactionRequest(
            topic=self.resource(topic),
            message_id=receipt.message_id,
            transaction_id=receipt.transaction_id,
            resolution=kind,
            source=origin,
        )
        # A server that asks has the transaction, whatever the route says.
        asked = source == v2.SOURCE_SERVER_CHECK
        transport = self.transport(receipt.endpoints if asked else self.server_of(topic, receipt.endpoints))
        await transport.call_checked("EndTransaction", request, self.options.request_timeout)

    async def _recover(self, endpoints: Endpoints, command: v2.RecoverOrphanedTransactionCommand) -> None:
        message = from_wire(command.message, endpoints)
        if self._checker is None:
            _log.warning(
                "%s asks for the result of transaction %s, but the producer has no checker",
                endpoints,
                message.message_id,
            )
            return
        try:
            answer = await self._checker(message)
            if answer == "unknown":
                return
            receipt = Receipt(message.message_id, message.offset, message.queue_id, endpoints, command.transaction_id)
            resolution = v2.COMMIT if answer == "commit" else v2.ROLLBACK
            await self._end_transaction(message.topic, receipt, resolution, v2.SOURCE_SERVER_CHECK)
        except Exception:
            _log.exception("cannot report the result of transaction %s; the server asks again", message.message_id)


def _open_error(result: Receipt | ClientError) -> ClientError | None:
    """The error in *result* after which its message is sent again."""
    return result if isinstance(result, ClientError) and not is_definite(result) else None


def _first_open(results: Results) -> ClientError | None:
    """The first error after which a message is sent again: what follows must not come before it."""
    return next(filter(None, map(_open_error, results)), None)


def _are_receipts(results: Results) -> TypeGuard[list[Receipt]]:
    """Whether no message failed."""
    return set(map(type, results)) == {Receipt}


def _batching(linger: float | timedelta, messages: int, size: int) -> Batching:
    found = Batching(seconds_of(linger), messages, size)
    if found.linger < 0 or messages < 1 or size < 1:
        raise BadRequestError(
            "linger must be at least 0 seconds, batch at least 1 message, batch_bytes at least 1 byte, but they are "
            f"{found.linger:g} seconds, {messages:,} messages and {size:,} bytes"
        )
    return found


def _read_results(response: v2.SendMessageResponse, queue: Queue, ids: Sequence[str], request_id: str) -> Results:
    """A receipt or an error for each of the messages *ids*, which went out with the request *request_id*."""
    if len(response.entries) != len(ids):
        error = status_error(response.status, request_id)
        text = f"the server returned {len(response.entries):,} results for {len(ids):,} messages"
        return [error or ServerFailedError(text, request_id=request_id)] * len(ids)
    return [status_error(entry.status, request_id) or _receipt(entry, queue) for entry in response.entries]


def _receipt(entry: v2.SendResultEntry, queue: Queue) -> Receipt:
    return Receipt(entry.message_id, entry.offset, queue.id, queue.endpoints, entry.transaction_id, entry.recall_handle)


def _with_trace(message: Message, trace: str | None) -> Message:
    """*message*, which carries the *trace* that it is part of, unless its sender has given it another."""
    if trace is None or tracing.HEADER in message.properties:
        return message
    return msgspec.structs.replace(message, properties={**message.properties, tracing.HEADER: trace})
