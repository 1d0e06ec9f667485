"""The section ``queue`` of the settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millstream.core.amounts import Duration, parse_duration
from millstream.core.settings import Section, require_time


class QueueSettings(Section, frozen=True):
    """Work queues. They are stored in logs of the node. With ``broker``, notices of tasks are sent over RabbitMQ
    (``amqp://user:password@host:port/vhost``, or ``amqp://user@host:port/vhost?password_file=/path``) or RocketMQ 5
    (``rocketmq://host:port``, with an access key ``rocketmq://KEY@host:port?secret_file=/path``; also
    `millstream serve`), and tasks are stored in ``database`` (``postgresql://…`` or ``mysql://…``; empty: the node's
    database).

    The other settings are for RabbitMQ. Each queue has one connection to receive, and at most ``publisher_pool_size``
    to send, opened on demand. After a lost connection the node retries after ``reconnect_initial_interval``, then after
    twice as long each time, up to ``reconnect_max_interval``; meanwhile workers take tasks from the database.
    """

    host_settings = frozenset(["publisher_pool_size", "reconnect_initial_interval", "reconnect_max_interval"])

    broker: str = ""
    database: str = ""
    publisher_pool_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    reconnect_initial_interval: Duration = parse_duration("200ms")
    reconnect_max_interval: Duration = parse_duration("10s")

    def __post_init__(self) -> None:
        require_time(self, "reconnect_initial_interval", "reconnect_max_interval")
