"""Notices of tasks on RabbitMQ: durable quorum queues, publisher confirms, delays in tiers.

A delayed notice waits in a queue whose messages all wait equally long, so none holds up another. It goes through as
many of these as it takes, the longest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from millstream.core.clock import Clock
from millstream.queue.database_queue import MAX_NOTICE_IDS, read_notice, write_notice
from millstream.queue.rabbitmq.connections import (
    BrokerConnection,
    BrokerConnectionPool,
    BrokerHealth,
    ConnectionOptions,
    parse_url,
)

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

TIERS = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""How long the messages of each delay queue wait, in seconds."""


class RabbitNotice(msgspec.Struct, frozen=True):
    """A message of the broker: tasks that may be leased. It is the broker's until it is acknowledged."""

    ids: Sequence[int]
    tag: int
    session: int


class RabbitNoticeChannel:
    """The notices of the queue *name* on the broker at *url* (``amqp://user:password@host:port/vhost``). Thread-safe.

    While the broker is unreachable nothing is sent or received and no error is raised; connecting is retried as
    *options* say.
    """

    def __init__(self, url: str, name: str, clock: Clock, options: ConnectionOptions | None = None) -> None:
        options = options or ConnectionOptions()
        parameters, health = parse_url(url), BrokerHealth(name, options, clock)
        self._name = name
        # Who waits for a confirm, or for a broker that takes nothing at the moment, keeps no process from receiving.
        self._receiving = BrokerConnection(parameters, self._prepare, health, clock)
        self._sending = BrokerConnectionPool(
            options.publishers, lambda: BrokerConnection(parameters, self._prepare, health, clock)
        )

    def send(self, ids: Sequence[int], delays: Mapping[int, float] | None = None) -> Sequence[int]:
        """Send notices of the tasks *ids*, some of them to come after *delays* seconds; the ids that were confirmed."""
        sent = list[int]()

        def publish(channel: BlockingChannel) -> None:
            for tier, members in _by_tier(ids, delays or {}).items():
                for start in range(0, len(members), MAX_NOTICE_IDS):
                    part = members[start : start + MAX_NOTICE_IDS]
                    self._publish(channel, tier, part)
                    sent.extend(part)

        if ids:
            with self._sending.connection() as connection:
                connection.use(publish)
        return sent

    def receive(self, count: int) -> Sequence[RabbitNotice]:
        """Notices of about *count* tasks; none where there is none, or no broker."""
        found = list[RabbitNotice]()

        def get(channel: BlockingChannel) -> None:
            while sum(len(notice.ids) for notice in found) < count:
                method, _, body = channel.basic_get(self._name)
                if method is None:
                    return
                found.append(RabbitNotice(read_notice(body), method.delivery_tag, self._receiving.session))

        self._receiving.use(get)
        self._sending.keep_alive()
        return found

    def settle(self, notices: Sequence[RabbitNotice]) -> None:
        """The tasks of *notices* are leased or gone; notices of a connection that was lost come again by themselves."""

        def acknowledge(channel: BlockingChannel) -> None:
            for notice in notices:
                if notice.session == self._receiving.session:
                    channel.basic_ack(notice.tag)

        self._receiving.use(acknowledge)

    def close(self) -> None:
        """Disconnect from the broker; what was received and not settled goes back to it."""
        self._sending.close()
        self._receiving.close()

    def _prepare(self, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        quorum = {"x-queue-type": "quorum"}
        channel.queue_declare(self._name, durable=True, arguments=quorum)
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self._name}
        for tier in TIERS:
            wait = {**quorum, **back, "x-message-ttl": int(tier * 1000)}
            channel.queue_declare(self._tier_name(tier), durable=True, arguments=wait)

    def _publish(self, channel: BlockingChannel, tier: float | None, ids: Sequence[int]) -> None:
        import pika

        queue = self._name if tier is None else self._tier_name(tier)
        properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent, content_type="application/json")
        channel.basic_publish("", queue, write_notice(ids), properties, mandatory=True)

    def _tier_name(self, tier: float) -> str:
        return f"{self._name}.delay.{int(tier * 1000)}ms"


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
