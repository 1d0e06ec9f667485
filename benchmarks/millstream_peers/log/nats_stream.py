"""A NATS JetStream stream in a file: each message published asynchronously and acknowledged by the server.

A server before version 2.10 cannot sync before it acknowledges; it does so every two minutes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from millstream.bench.log.protocol import Part, QueueLocation
from millstream_peers.log.grouped import GroupingSender

Result = TypeVar("Result")

_IN_FLIGHT = 2000
_FETCH = 1000


class _Loop:
    """An event loop in a thread, and a connection in it."""

    def __init__(self, place: QueueLocation) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client, self.stream = self.run(_connect(place))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def close(self) -> None:
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class NatsSender(GroupingSender):
    """Publishes with at most 2,000 messages under way."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._loop, self._subject = _Loop(place), place.queue

    def close(self) -> None:
        super().close()
        self._loop.close()

    def _commit(self, bodies: list[bytes], first: int) -> None:
        last = self._loop.run(self._publish(bodies))
        if last != first + len(bodies) - 1:
            raise AssertionError(f"the stream is at {last}, not at {first + len(bodies) - 1}")

    async def _publish(self, bodies: list[bytes]) -> int:
        last = 0
        for start in range(0, len(bodies), _IN_FLIGHT):
            part = bodies[start : start + _IN_FLIGHT]
            futures = [await self._loop.stream.publish_async(self._subject, body) for body in part]
            for reply in await asyncio.gather(*futures):
                last = max(last, reply.seq)
        return last


class NatsReceiver:
    """Fetches 1,000 at a time and acknowledges them all with the last."""

    def __init__(self, place: QueueLocation) -> None:
        self._loop = _Loop(place)
        self._subscription = self._loop.run(_subscribe(self._loop.stream, place.queue))

    def follow(self, total: int) -> Iterator[Part]:
        last = 0
        while last < total:
            messages = self._loop.run(self._fetch())
            ids: list[int] = []
            bodies: list[bytes] = []
            for message in messages:
                ids.append(message.metadata.sequence.stream)
                bodies.append(message.data)
            if ids:
                last = ids[-1]
                yield ids, bodies

    def close(self) -> None:
        self._loop.close()

    async def _fetch(self) -> list[Any]:
        try:
            messages: list[Any] = await self._subscription.fetch(_FETCH, timeout=5)
        except TimeoutError:
            return []
        await messages[-1].ack()
        return messages


async def _connect(place: QueueLocation) -> tuple[Any, Any]:
    import nats

    client = await nats.connect(place.url)
    stream = client.jetstream(publish_async_max_pending=2 * _IN_FLIGHT)
    await stream.add_stream(name=place.queue, subjects=[place.queue])
    return client, stream


async def _subscribe(stream: Any, queue: str) -> Any:
    from nats.js.api import AckPolicy, ConsumerConfig

    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * _FETCH)
    return await stream.pull_subscribe(queue, durable="reader", config=config)
