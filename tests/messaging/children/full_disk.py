"""A broker on a small disk of its own that runs full while a client sends and receives; prints what happened as JSON.

Arguments: the empty disk, the scheme of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from millstream.core.address import Address
from millstream.core.event_loop import run_server
from millstream.log import open_store
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import ClientError, Message, Options, Producer, SimpleConsumer
from millstream.testing.brokers import IMPATIENT

disk, scheme = Path(sys.argv[1]), sys.argv[2]
ballast = disk / "ballast"
ballast.write_bytes(bytes(3 << 20))
ONCE = Options(attempts=1)
SECONDS = 60.0
draw = random.Random(1)


async def until_it_works(work: Any) -> Any:
    """The result of *work*, which is repeated until the broker accepts it; each attempt takes a call to the broker."""
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(ClientError):
                return await work()


async def fill(producer: Producer) -> tuple[list[str], str]:
    """Send until the disk is full: what was confirmed, and what was said then."""
    confirmed: list[str] = []
    for number in range(10_000):
        try:
            await producer.send(Message("t", b"%06d" % number + draw.randbytes(50_000)))
        except ClientError as error:
            return confirmed, str(error)
        confirmed.append(f"{number:06d}")
    return confirmed, ""


async def drain(consumer: SimpleConsumer) -> list[str]:
    found: list[str] = []
    while messages := await until_it_works(lambda: consumer.receive(64, invisible=30)):
        found += [message.body[:6].decode() for message in messages]
        await until_it_works(lambda messages=messages: consumer.ack(*messages))
    return found


async def main() -> dict[str, Any]:
    with open_store(f"{scheme}:///{disk / 'log'}", lease_seconds=1) as store:
        async with BrokerServer(store, Address("127.0.0.1", 0), limits=IMPATIENT) as server:
            at = f"127.0.0.1:{server.port}"
            place = Address("127.0.0.1", server.port)
            await asyncio.to_thread(call_broker, place, CREATE_TOPIC, TopicSpec("t"))
            async with (
                Producer(at, ["t"], options=ONCE) as producer,
                SimpleConsumer(at, "g", {"t": "*"}, await_duration=0.5, options=ONCE) as consumer,
            ):
                confirmed, told = await fill(producer)
                ballast.unlink()
                await until_it_works(lambda: producer.send(Message("t", b"after ")))
                received = await drain(consumer)
                return {"confirmed": confirmed, "told": told, "received": received}


print(json.dumps(run_server(main())))
