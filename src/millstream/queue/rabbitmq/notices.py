"""Notices of tasks on RabbitMQ: durable quorum queues, publisher confirms, delays in tiers.

A delayed notice waits in a queue whose messages all wait equally long, so none holds up another. It goes through as
many of these as it takes, the longest first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from millstream.core.clock import Clock
from millstream.queue.noticed import NOTICE_IDS, read_notice, write_notice
from millstream.queue.protocol import QueueError, QueueInputError

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

TIERS = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""How long the messages of each delay queue wait, in seconds."""

_RECONNECT = (0.1, 10.0)  # seconds between attempts: at first, at most
_log = logging.getLogger(__name__)


class Notice(msgspec.Struct, frozen=True):
    """A message of the broker: tasks that may be leased. It is the broker's until it is acknowledged."""

    ids: Sequence[int]
    tag: int
    session: int


class Notices:
    """The notices of the queue *name* on the broker at *url* (``amqp://user:password@host:port/vhost``). Thread-safe.

    While the broker is away nothing is sent or received and no error raised; it is looked for again and again.
    """

    def __init__(self, url: str, name: str, clock: Clock) -> None:
        self._parameters = _parameters(url)
        self._name = name
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self._session = 0
        self._failures = 0
        self._not_before = 0.0

    def send(self, ids: Sequence[int], delays: Mapping[int, float] | None = None) -> Sequence[int]:
        """Send notices of the tasks *ids*, some of them to come after *delays* seconds; the ids that were confirmed."""
        sent = list[int]()

        def publish(channel: BlockingChannel) -> None:
            for tier, members in _by_tier(ids, delays or {}).items():
                for start in range(0, len(members), NOTICE_IDS):
                    part = members[start : start + NOTICE_IDS]
                    self._publish(channel, tier, part)
                    sent.extend(part)

        if ids:
            self._talk(publish)
        return sent

    def receive(self, count: int) -> Sequence[Notice]:
        """Notices of about *count* tasks; none where there is none, or no broker."""
        found = list[Notice]()

        def get(channel: BlockingChannel) -> None:
            while sum(len(notice.ids) for notice in found) < count:
                method, _, body = channel.basic_get(self._name)
                if method is None:
                    return
                found.append(Notice(read_notice(body), method.delivery_tag, self._session))

        self._talk(get)
        return found

    def settle(self, notices: Sequence[Notice]) -> None:
        """The tasks of *notices* are leased or gone; notices of a connection that was lost come again by themselves."""

        def acknowledge(channel: BlockingChannel) -> None:
            for notice in notices:
                if notice.session == self._session:
                    channel.basic_ack(notice.tag)

        self._talk(acknowledge)

    def close(self) -> None:
        """Let go of the broker; what was received and not settled goes back to it."""
        with self._lock:
            self._forget()

    def _talk(self, action: Callable[[BlockingChannel], None]) -> None:
        """Do *action* on the channel, which this thread holds meanwhile; nothing while the broker is away.

        What breaks the connection is not raised, but logged, once an outage.
        """
        from pika.exceptions import AMQPError

        with self._lock:
            try:
                channel = self._open()
                if channel is not None:
                    action(channel)
            except (AMQPError, OSError) as error:
                self._failures += 1
                if self._failures == 1:
                    _log.warning("the broker of queue %s is away: %s", self._name, type(error).__name__)
                self._not_before = self._clock.monotonic() + min(_RECONNECT[1], _RECONNECT[0] * 2**self._failures)
                self._forget()

    def _open(self) -> BlockingChannel | None:
        if self._connection is not None:
            self._connection.process_data_events(0)  # heartbeats, and news of a connection that was lost
        if self._channel is not None and self._channel.is_open:
            return self._channel
        if self._clock.monotonic() < self._not_before:
            return None
        self._forget()
        self._channel = self._connect()
        if self._failures:
            _log.warning("the broker of queue %s is back", self._name)
        self._failures = 0
        return self._channel

    def _connect(self) -> BlockingChannel:
        import pika

        logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells of an outage in a dozen lines, we in one
        self._connection = pika.BlockingConnection(self._parameters)
        self._session += 1
        channel = self._connection.channel()
        channel.confirm_delivery()
        quorum = {"x-queue-type": "quorum"}
        channel.queue_declare(self._name, durable=True, arguments=quorum)
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self._name}
        for tier in TIERS:
            wait = {**quorum, **back, "x-message-ttl": int(tier * 1000)}
            channel.queue_declare(self._tier_name(tier), durable=True, arguments=wait)
        return channel

    def _publish(self, channel: BlockingChannel, tier: float | None, ids: Sequence[int]) -> None:
        import pika

        queue = self._name if tier is None else self._tier_name(tier)
        properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent, content_type="application/json")
        channel.basic_publish("", queue, write_notice(ids), properties, mandatory=True)

    def _tier_name(self, tier: float) -> str:
        return f"{self._name}.delay.{int(tier * 1000)}ms"

    def _forget(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None and connection.is_open:
            with contextlib.suppress(Exception):
                connection.close()


def _by_tier(ids: Sequence[int], delays: Mapping[int, float]) -> dict[float | None, list[int]]:
    """*ids* by the delay queue that each has to go through next; None is the queue itself."""
    groups: dict[float | None, list[int]] = {}
    for task_id in ids:
        groups.setdefault(_tier(delays.get(task_id, 0.0)), []).append(task_id)
    return groups


def _tier(delay: float) -> float | None:
    if delay <= 0:
        return None
    return max((tier for tier in TIERS if tier <= delay), default=TIERS[0])


def _parameters(url: str) -> Any:
    if urlsplit(url).scheme not in ("amqp", "amqps"):
        raise QueueInputError("a broker of RabbitMQ is amqp://user:password@host:port/vhost")
    try:
        import pika
    except ImportError as error:
        raise QueueError("RabbitMQ needs pika: pip install 'millstream[rabbitmq]'") from error
    parameters = pika.URLParameters(url)
    parameters.blocked_connection_timeout = 30
    parameters.socket_timeout = 10
    return parameters
