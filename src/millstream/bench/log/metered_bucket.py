"""A bucket that counts what is asked of it, and can be farther away than it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from millstream.core.clock import Clock
from millstream.log.backends.objects.bucket import Bucket


class BucketUsage(msgspec.Struct, frozen=True):
    """Requests so far by kind, and the bytes of objects that were sent and received."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    bytes: int = 0

    def figures(self, before: BucketUsage, messages: int) -> dict[str, float]:
        """What was used since *before*, for a million *messages*."""
        millions = messages / 1e6
        return {
            "PUT/million": (self.puts - before.puts) / millions,
            "GET/million": (self.gets - before.gets) / millions,
            "LIST/million": (self.lists - before.lists) / millions,
            "MB/million": (self.bytes - before.bytes) / millions / 1e6,
        }


class MeteredBucket:
    """*bucket*, where each request takes *latency* seconds longer. Thread-safe."""

    def __init__(self, bucket: Bucket, latency: float, clock: Clock) -> None:
        self._bucket, self._latency, self._clock = bucket, latency, clock
        self._lock = threading.Lock()
        self.usage = BucketUsage()

    @property
    def url(self) -> str:
        return self._bucket.url

    def create(self, name: str, data: bytes) -> bool:
        with self._request(puts=1, size=len(data)):
            return self._bucket.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        with self._request(puts=1, size=len(data)):
            self._bucket.put(name, data)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        with self._request(gets=1):
            data = self._bucket.get(name, start, length)
        self._count(size=len(data or b""))
        return data

    def size(self, name: str) -> int | None:
        with self._request(gets=1):
            return self._bucket.size(name)

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        with self._request(lists=1):
            return self._bucket.list(prefix, after, limit)

    def delete(self, names: Sequence[str]) -> None:
        with self._request():
            self._bucket.delete(names)

    def server_time(self) -> int:
        return self._bucket.server_time()

    def close(self) -> None:
        self._bucket.close()

    @contextmanager
    def _request(self, *, puts: int = 0, gets: int = 0, lists: int = 0, size: int = 0) -> Iterator[None]:
        self._count(puts=puts, gets=gets, lists=lists, size=size)
        if self._latency:
            self._clock.sleep(self._latency)
        yield

    def _count(self, *, puts: int = 0, gets: int = 0, lists: int = 0, size: int = 0) -> None:
        with self._lock:
            used = self.usage
            self.usage = BucketUsage(used.puts + puts, used.gets + gets, used.lists + lists, used.bytes + size)
