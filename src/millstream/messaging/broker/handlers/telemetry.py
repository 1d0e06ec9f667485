"""The stream between a client and the broker: settings both ways, and commands to the client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from millstream.messaging.broker.clients.client_quirks import asks_for_routes_first, set_backoff
from millstream.messaging.broker.clients.sessions import MAX_COMMANDS, ClientSession
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.handlers.validation import MAX_BODY, check_client_type
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.security.required_permissions import check_settings
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import BATCH_OFFER, is_millstream_client

RECEIVE_BATCH: Final = 32

_LONGEST_HOLD: Final = 0.5  # seconds
_ROUTE_TIME: Final = 0.02  # seconds in which a client takes note of a route

_log = logging.getLogger(__name__)

Write = Callable[["v2.TelemetryCommand"], Awaitable[Any]]


class TelemetryHandler:
    """Handles the telemetry streams of the clients of *core*."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def handle(
        self, session: ClientSession, call: CallContext, request: v2.TelemetryCommand
    ) -> list[v2.TelemetryCommand]:
        """Take what came from a client; what it is answered."""
        session.touch(call.connection, self._core.clock.now())
        if request.HasField("settings"):
            return answers(self.merge_settings(session, request.settings, call.namespace))
        self._core.client_commands.answer(session, request)
        return []

    def open(
        self, session: ClientSession, call: CallContext, commands: asyncio.Queue[v2.TelemetryCommand]
    ) -> contextlib.AbstractContextManager[None]:
        """The stream of *call*, by which *commands* reach a client, for the length of the block."""
        return session.stream(commands, call.connection, self._core.clock.now())

    def merge_settings(self, session: ClientSession, declared: v2.Settings, namespace: str = "") -> v2.TelemetryCommand:
        """Take down what a client *declared*; the settings that it is to keep to.

        The status says if it may not have that: then nothing is taken down.
        """
        part = declared.WhichOneof("pub_sub")
        answer = v2.TelemetryCommand()
        if part is None:
            answer.status.code = v2.UNRECOGNIZED_CLIENT_TYPE
            answer.status.message = "settings need a publishing or a subscription part"
            return answer
        answer.status.code, answer.status.message = v2.OK, "OK"
        answer.settings.CopyFrom(declared)
        try:
            check_client_type(declared.client_type)
            check_settings(declared, session.access, namespace)
        except StatusError as refused:
            answer.status.code, answer.status.message = refused.code, str(refused)  # type: ignore[assignment]
        else:
            _store_declared(session, declared, namespace)
        if part == "publishing":
            _merge_producer_settings(answer.settings)
        else:
            self._merge_consumer_settings(answer.settings, namespace)
            if session.began_in_order is None:
                session.began_in_order = answer.settings.subscription.fifo
        answer.settings.metric.on = False
        if is_millstream_client(declared):
            answer.settings.user_agent.platform = BATCH_OFFER
        return answer

    def resend_settings(self, group: str) -> None:
        """The consumers of *group* that can be reached get settings by its present rules."""
        for session in self._core.sessions.in_group(group):
            if session.takes_commands and session.settings is not None:
                session.command(self.merge_settings(session, *session.settings))

    def _merge_consumer_settings(self, settings: v2.Settings, namespace: str) -> None:
        subscription, policy = settings.subscription, settings.backoff_policy
        subscription.fifo = self._has_order(_topics(settings, namespace))
        subscription.receive_batch_size = RECEIVE_BATCH
        if not subscription.HasField("long_polling_timeout"):
            longest = timedelta(microseconds=self._core.limits.longest_poll)
            subscription.long_polling_timeout.FromTimedelta(longest)
        rules = self._core.group(full_name(subscription.group, namespace))
        policy.Clear()
        policy.max_attempts = rules.max_attempts
        set_backoff(settings, rules.backoff)

    def _has_order(self, topics: frozenset[str]) -> bool:
        specs = self._core.journal.state.topics
        return any(specs[topic].type == "FIFO" for topic in topics if topic in specs)


async def serve(
    present: Callable[[], TelemetryHandler],
    session: ClientSession,
    call: CallContext,
    requests: AsyncIterator[v2.TelemetryCommand],
    write: Write,
) -> None:
    """Answer what comes from a client until it closes the stream; send what others put on it. No more is read from a
    client that does not read what it is sent.

    *present* is what answers: a stream may outlive the core that was there when it was opened.
    """
    commands: asyncio.Queue[v2.TelemetryCommand] = asyncio.Queue(MAX_COMMANDS)
    sender = asyncio.ensure_future(_send(commands, write))
    try:
        with present().open(session, call, commands):
            async for request in requests:
                if request.HasField("settings"):
                    await _wait_for_route_queries(session, request.settings, call.namespace)
                for command in present().handle(session, call, request):
                    await commands.put(command)
    finally:
        sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sender


def long_poll(limits: Limits, asked: float, left: float | None) -> float:
    """For how many seconds a receive waits that *asked* for a time and has *left* until its deadline."""
    wait = min(max(asked, limits.shortest_poll / 1e6), limits.longest_poll / 1e6)
    return wait if left is None else max(min(wait, left - 0.5), 0.0)


def answers(answer: v2.TelemetryCommand) -> list[v2.TelemetryCommand]:
    """The commands to send for *answer*: a refusal alone, and then the settings as if it was accepted.

    Some clients take the refusal. Others wait for settings whatever they are told, Java's for six seconds, Go's and
    Python's (5.1.1) for ever: with them they begin, and the first call that is refused tells why.
    """
    if answer.status.code == v2.OK or not answer.HasField("settings"):
        return [answer]
    refusal = v2.TelemetryCommand(status=answer.status)
    answer.status.code, answer.status.message = v2.OK, "OK"
    return [refusal, answer]


async def _wait_for_route_queries(session: ClientSession, declared: v2.Settings, namespace: str) -> None:
    """Wait until the client can take an answer to its first settings."""
    if session.declared or not asks_for_routes_first(declared):
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LONGEST_HOLD):
            await session.wait_for_route_queries(_topics(declared, namespace))
            await asyncio.sleep(_ROUTE_TIME)


def _topics(declared: v2.Settings, namespace: str) -> frozenset[str]:
    """The topics that *declared* settings name."""
    subscribed = [each.topic for each in declared.subscription.subscriptions]
    return frozenset(full_name(topic, namespace) for topic in [*declared.publishing.topics, *subscribed])


def _store_declared(session: ClientSession, declared: v2.Settings, namespace: str) -> None:
    """The client is what it *declared*."""
    session.settings, session.topics = (declared, namespace), _topics(declared, namespace)
    if declared.WhichOneof("pub_sub") == "publishing":
        session.kind = v2.PRODUCER
    else:
        session.kind = declared.client_type or v2.SIMPLE_CONSUMER
        session.group = full_name(declared.subscription.group, namespace)


def _merge_producer_settings(settings: v2.Settings) -> None:
    settings.publishing.max_body_size = MAX_BODY
    settings.publishing.validate_message_type = True
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = 3
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromSeconds(1)
    policy.exponential_backoff.multiplier = 2


async def _send(commands: asyncio.Queue[v2.TelemetryCommand], write: Write) -> None:
    is_broken = False
    while True:
        command = await commands.get()
        if is_broken:  # what is still put on the stream is taken, so that nobody waits
            continue
        try:
            await write(command)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.info("a telemetry stream broke: %s", error)
            is_broken = True
