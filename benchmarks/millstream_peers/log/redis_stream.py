"""A Redis Stream, one entry a message, the append-only file synced before each reply."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from millstream.bench.log.protocol import Part, QueueLocation
from millstream.core.clock import SystemClock
from millstream_peers.log.grouped import GroupingSender

_READ = 10_000
_NAP = 0.001


class RedisSender(GroupingSender):
    """Adds entries with ids of its own through a pipeline, packed beforehand: the fastest way that the client has."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._client, self._queue = _connect(place), place.queue.encode()
        self._connection = self._client.connection_pool.get_connection()

    def close(self) -> None:
        super().close()
        self._client.connection_pool.release(self._connection)
        self._client.close()

    def _commit(self, bodies: list[bytes], first: int) -> None:
        key = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n" % (len(self._queue), self._queue)
        commands = [
            b"%b$%d\r\n%b\r\n$1\r\nb\r\n$%d\r\n%b\r\n" % (key, len(number), number, len(body), body)
            for number, body in zip((b"%d-0" % n for n in range(first, first + len(bodies))), bodies, strict=True)
        ]
        self._connection.send_packed_command([b"".join(commands)])
        for _ in bodies:
            self._connection.read_response()


class RedisReceiver:
    """Reads ranges of entries, and keeps its position in a key."""

    def __init__(self, place: QueueLocation) -> None:
        self._client, self._queue = _connect(place), place.queue
        self._clock, self._nap = SystemClock(), threading.Condition()

    def follow(self, total: int) -> Iterator[Part]:
        last = 0
        while last < total:
            entries: list[tuple[bytes, dict[bytes, bytes]]] = self._client.xrange(
                self._queue, f"({last}-0", count=_READ
            )
            if not entries:
                with self._nap:
                    self._clock.wait(self._nap, _NAP)
                continue
            ids: list[int] = []
            bodies: list[bytes] = []
            for number, fields in entries:
                ids.append(int(number[:-2]))
                bodies.append(fields[b"b"])
            last = ids[-1]
            self._client.set(f"{self._queue}:reader", last)
            yield ids, bodies

    def close(self) -> None:
        self._client.close()


def _connect(place: QueueLocation) -> Any:
    import redis

    return redis.Redis.from_url(place.url)
