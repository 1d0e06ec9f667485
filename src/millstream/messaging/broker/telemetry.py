"""The stream between a client and the broker: settings both ways, and commands to the client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from millstream.messaging.broker.call import Call
from millstream.messaging.broker.checks import MAX_BODY, Limits
from millstream.messaging.broker.core import Core
from millstream.messaging.broker.guard import check_settings
from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.sessions import Session
from millstream.messaging.errors import RefusedError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batches import OFFER, is_ours

RECEIVE_BATCH: Final = 32

_log = logging.getLogger(__name__)

Write = Callable[["v2.TelemetryCommand"], Awaitable[Any]]


class Telemetry:
    """Keeps the streams of the clients of *core*."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def serve(
        self, session: Session, call: Call, requests: AsyncIterator[v2.TelemetryCommand], write: Write
    ) -> None:
        """Answer what comes from a client until it closes the stream; send what others put on it."""
        commands: asyncio.Queue[v2.TelemetryCommand] = asyncio.Queue()
        sender = asyncio.ensure_future(_send(commands, write))
        try:
            with session.stream(commands, call.connection, self._core.clock.now()):
                async for request in requests:
                    session.see(call.connection, self._core.clock.now())
                    if request.HasField("settings"):
                        commands.put_nowait(self.settle(session, request.settings, call.namespace))
                    else:
                        self._core.questions.answer(session, request)
        finally:
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sender

    def settle(self, session: Session, declared: v2.Settings, namespace: str = "") -> v2.TelemetryCommand:
        """Take down what a client *declared*; the settings that it is to keep to."""
        part = declared.WhichOneof("pub_sub")
        answer = v2.TelemetryCommand()
        if part is None:
            answer.status.code = v2.UNRECOGNIZED_CLIENT_TYPE
            answer.status.message = "settings need a publishing or a subscription part"
            return answer
        try:
            check_settings(declared, session.access, namespace)
        except RefusedError as refused:
            answer.status.code, answer.status.message = refused.code, str(refused)  # type: ignore[assignment]
            return answer
        answer.status.code, answer.status.message = v2.OK, "OK"
        answer.settings.CopyFrom(declared)
        if part == "publishing":
            session.kind = v2.PRODUCER
            session.topics = frozenset(full_name(topic, namespace) for topic in declared.publishing.topics)
            _settle_producer(answer.settings)
        else:
            self._settle_consumer(session, declared, answer.settings, namespace)
        answer.settings.metric.on = False
        if is_ours(declared):
            answer.settings.user_agent.platform = OFFER
        return answer

    def settle_again(self, group: str) -> None:
        """The consumers of *group* that can be reached get settings by its present rules."""
        for session in self._core.sessions.in_group(group):
            if session.streams and session.settings is not None:
                session.streams[-1].put_nowait(self.settle(session, *session.settings))

    def _settle_consumer(self, session: Session, declared: v2.Settings, settings: v2.Settings, namespace: str) -> None:
        wanted = declared.subscription
        session.kind = declared.client_type or v2.SIMPLE_CONSUMER
        session.settings = declared, namespace
        session.group = full_name(wanted.group, namespace)
        session.topics = frozenset(full_name(each.topic, namespace) for each in wanted.subscriptions)
        subscription = settings.subscription
        subscription.fifo = self._has_order(session.topics)
        subscription.receive_batch_size = RECEIVE_BATCH
        if not wanted.HasField("long_polling_timeout"):
            longest = timedelta(microseconds=self._core.limits.longest_poll)
            subscription.long_polling_timeout.FromTimedelta(longest)
        policy, rules = settings.backoff_policy, self._core.group(session.group)
        policy.Clear()
        policy.max_attempts = rules.max_attempts
        for pause in rules.backoff:
            policy.customized_backoff.next.add().FromMicroseconds(pause)

    def _has_order(self, topics: frozenset[str]) -> bool:
        specs = self._core.journal.state.topics
        return any(specs[topic].type == "FIFO" for topic in topics if topic in specs)


def long_poll(limits: Limits, asked: float, left: float | None) -> float:
    """For how many seconds a receive waits that *asked* for so many and has *left* until its deadline."""
    wait = min(max(asked, limits.shortest_poll / 1e6), limits.longest_poll / 1e6)
    return wait if left is None else max(min(wait, left - 0.5), 0.0)


def _settle_producer(settings: v2.Settings) -> None:
    settings.publishing.max_body_size = MAX_BODY
    settings.publishing.validate_message_type = True
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = 3
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromSeconds(1)
    policy.exponential_backoff.multiplier = 2


async def _send(commands: asyncio.Queue[v2.TelemetryCommand], write: Write) -> None:
    while True:
        try:
            await write(await commands.get())
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.info("a telemetry stream broke: %s", error)
            return
