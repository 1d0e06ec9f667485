"""A broker that shares its topics with other processes: ``shared_broker.py STORE-URL PORT LIMITS-JSON OWNER-FILE``.

It prints its port when it listens, on standby. A line ``begin`` or ``end`` makes it the broker or ends that; it answers
``done``, or ``busy``. OWNER-FILE has the address of the one that is the broker.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from millstream.core.address import Address, parse_address
from millstream.core.clock import SystemClock
from millstream.core.decoding import prepared
from millstream.core.event_loop import run_server
from millstream.log import WriterBusyError, open_store
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.server.listener import Listener
from millstream.messaging.broker.server.shared_broker import SharedBroker


async def main(url: str, port: str, limits: str, owner: str) -> None:
    """Serve until the input ends."""
    file = Path(owner)

    def find() -> RouteEndpoints | None:
        text = file.read_text("utf-8")
        return RouteEndpoints(address=parse_address(text), as_asked=False) if text else None

    listener = Listener(Address("127.0.0.1", int(port)))
    rules = msgspec.json.decode(limits, type=prepared(Limits))
    with open_store(url) as store:
        async with SharedBroker(
            store, listener, find, clock=SystemClock(), member_key=b"members", limits=rules
        ) as broker:
            print(broker.places[0].port, flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                try:
                    if line.strip() == "begin":
                        await broker.begin()
                        file.write_text(str(broker.routes.address), "utf-8")
                    else:
                        await broker.end()
                except WriterBusyError:
                    print("busy", flush=True)
                else:
                    print("done", flush=True)


if __name__ == "__main__":
    run_server(main(*sys.argv[1:]))
