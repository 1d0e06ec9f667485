"""The work queue on RabbitMQ."""

from __future__ import annotations

import sqlalchemy as sa

from millstream.core.clock import Clock, SystemClock
from millstream.queue.database_queue import DatabaseWorkQueue
from millstream.queue.rabbitmq.connections import ConnectionOptions
from millstream.queue.rabbitmq.notices import RabbitNoticeChannel


class RabbitWorkQueue(DatabaseWorkQueue):
    """The queue *name*: its tasks are rows in the database of *engine*, notices of them travel over RabbitMQ at *url*.

    AMQP has neither leases that can be extended nor attempts that survive, so the rows decide. *options* say how many
    connections there may be, and how a broker that cannot be reached is looked for.
    """

    def __init__(
        self,
        url: str,
        engine: sa.Engine,
        name: str,
        clock: Clock | None = None,
        *,
        server_time: bool = True,
        options: ConnectionOptions | None = None,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(RabbitNoticeChannel(url, name, clock, options), engine, name, clock, server_time=server_time)
