"""A bucket before whose requests other processes may do anything: a process that sleeps at each request in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millstream.log.backends.objects.bucket import Bucket, UnknownOutcomeError
from millstream.testing.object_bucket import MemoryBucket


class RecordingBucket(MemoryBucket):
    """Keeps the first object that was created under each name, whatever is deleted later: of commits, the chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        made = super().create(name, data)
        if made:
            self.first.setdefault(name, data)
        return made


class InterposedBucket:
    """*bucket* as one process sees it; before its request number ``at`` (from 0 on) ``happens`` is called, once.

    With ``loses``, that request, if it is a create, gets no answer and is done after what happens: it was late.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self.requests = 0
        self.at = -1
        self.loses = False
        self.happens: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return self._bucket.url

    def create(self, name: str, data: bytes) -> bool:
        if self._turn() and self.loses:
            self._bucket.create(name, data)
            raise UnknownOutcomeError(f"no answer to the create of {name!r}")
        return self._bucket.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._turn()
        self._bucket.put(name, data)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        self._turn()
        return self._bucket.get(name, start, length)

    def size(self, name: str) -> int | None:
        self._turn()
        return self._bucket.size(name)

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        self._turn()
        return self._bucket.list(prefix, after, limit)

    def delete(self, names: Sequence[str]) -> None:
        self._turn()
        self._bucket.delete(names)

    def server_time(self) -> int:
        return self._bucket.server_time()

    def close(self) -> None:
        pass

    def begin(self, at: int, happens: Callable[[], None], *, loses: bool) -> None:
        """From now on requests are counted from 0, and *happens* is called before number *at*."""
        self.requests, self.at, self.happens, self.loses = 0, at, happens, loses

    def _turn(self) -> bool:
        with self._lock:
            is_turn = self.requests == self.at
            self.requests += 1
        if is_turn:
            self.happens()
        return is_turn
