"""The work queue on RabbitMQ: tasks in a database, notices of them on quorum queues. Needs ``millstream[rabbitmq]``."""

from __future__ import annotations

from millstream.queue.rabbitmq.connections import ConnectionOptions
from millstream.queue.rabbitmq.rabbit_queue import RabbitWorkQueue

__all__ = ["ConnectionOptions", "RabbitWorkQueue"]
