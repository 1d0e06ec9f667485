"""The section ``queue`` of the settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from millstream.core.amounts import Duration, parse_duration
from millstream.core.settings import Section, require_time


class QueueSettings(Section, frozen=True):
    """Work queues. They lie on logs of the node; with ``broker`` their notices travel over RabbitMQ
    (``amqp://user:password@host:port/vhost``) or RocketMQ 5 (``rocketmq://host:port``, `millstream serve` too), and
    their tasks lie in ``database`` (``mysql://…``), or in the node's own.

    The others are for RabbitMQ. Each queue has one connection that receives, and up to ``publisher_pool_size`` that
    send at the same time; they are opened when they are needed. A broker that cannot be reached is called again after
    ``reconnect_initial_interval``, then after twice as long, up to ``reconnect_max_interval``, for as long as it takes;
    meanwhile work goes on from the database.
    """

    broker: str = ""
    database: str = ""
    publisher_pool_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    reconnect_initial_interval: Duration = parse_duration("200ms")
    reconnect_max_interval: Duration = parse_duration("10s")

    def __post_init__(self) -> None:
        require_time(self, "reconnect_initial_interval", "reconnect_max_interval")
