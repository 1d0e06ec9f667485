"""A worker to be killed: it leases, acknowledges, and then says what it has done."""

from __future__ import annotations

import sys

import sqlalchemy as sa

from millstream.core.clock import SystemClock
from millstream.queue.rabbitmq import RabbitWorkQueue


def main(broker: str, database: str, name: str) -> None:
    queue = RabbitWorkQueue(broker, sa.create_engine(database, connect_args={"timeout": 30}), name)
    clock = SystemClock()
    while True:
        leases = queue.lease(10, visibility=1.0)
        queue.ack(leases)
        for lease in leases:
            print(lease.body.decode(), flush=True)
        if not leases:
            clock.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
