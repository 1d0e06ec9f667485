"""A bucket in memory, and one whose requests go wrong by a seeded script, for tests of logs on object storage."""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from millstream.core.clock import Clock, SystemClock
from millstream.log.backends.objects.bucket import Bucket, UnknownOutcomeError


class MemoryBucket:
    """Objects in memory, as long as this object lives. ``requests`` counts what was asked for, by kind."""

    url = "s3://memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._time = 0
        self.objects: dict[str, bytes] = {}
        self.requests: dict[str, int] = {}

    def create(self, name: str, data: bytes) -> bool:
        with self._counted("create"):
            is_new = name not in self.objects
            return is_new and self.objects.setdefault(name, data) is data

    def put(self, name: str, data: bytes) -> None:
        with self._counted("put"):
            self.objects[name] = data

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        with self._counted("get"):
            data = self.objects.get(name)
        return None if data is None else data[start : None if length is None else start + length]

    def size(self, name: str) -> int | None:
        with self._counted("get"):
            data = self.objects.get(name)
        return None if data is None else len(data)

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        with self._counted("list"):
            return sorted(name for name in self.objects if name.startswith(prefix) and name > after)[:limit]

    def delete(self, names: Sequence[str]) -> None:
        with self._counted("delete"):
            for name in names:
                self.objects.pop(name, None)

    def server_time(self) -> int:
        with self._lock:
            self._time = max(self._time, self._clock.now())
            return self._time

    def close(self) -> None:
        pass

    def _counted(self, kind: str) -> threading.Lock:
        self.requests[kind] = self.requests.get(kind, 0) + 1
        return self._lock


class BucketFault(enum.StrEnum):
    """What may happen to a request."""

    NONE = "none"
    LOST = "lost"
    """It never arrives, and there is no answer."""
    REPLY_LOST = "reply lost"
    """It is done, and there is no answer."""
    LATE = "late"
    """There is no answer, and it is done after some of the requests that follow."""
    DOUBLED = "doubled"
    """It is done and answered, and it is done once more after some of the requests that follow."""
    CONFLICT = "conflict"
    """409: somebody else is creating that name; it is not done."""
    UNAVAILABLE = "unavailable"
    """503: it is not done."""
    STALE = "stale"
    """A listing shows what was there some requests ago."""
    SLOW = "slow"
    """It takes a second on the clock before it is done."""


CHANGES = (
    BucketFault.LOST,
    BucketFault.REPLY_LOST,
    BucketFault.LATE,
    BucketFault.DOUBLED,
    BucketFault.CONFLICT,
    BucketFault.UNAVAILABLE,
    BucketFault.SLOW,
)
FAULTS: Mapping[str, Sequence[BucketFault]] = {
    "create": CHANGES,
    "put": [fault for fault in CHANGES if fault is not BucketFault.CONFLICT],
    "delete": [fault for fault in CHANGES if fault is not BucketFault.CONFLICT],
    "get": (BucketFault.LOST, BucketFault.UNAVAILABLE, BucketFault.SLOW),
    "list": (BucketFault.LOST, BucketFault.UNAVAILABLE, BucketFault.SLOW, BucketFault.STALE),
}
"""What may happen to each kind of request."""


class FaultScript(Protocol):
    """Says what happens to the next request: its kind (``create``, ``put``, ``get``, ``list``, ``delete``) and name."""

    def __call__(self, kind: str, name: str, /) -> BucketFault: ...


class RandomFaults:
    """A share *rate* of all requests goes wrong, as the random numbers of *seed* say."""

    def __init__(self, seed: int, rate: float) -> None:
        self._draw, self._rate = random.Random(seed), rate

    def __call__(self, kind: str, name: str, /) -> BucketFault:  # noqa: ARG002
        return self._draw.choice(FAULTS[kind]) if self._draw.random() < self._rate else BucketFault.NONE


class FaultyBucket:
    """*bucket*, where each request is subject to what *script* says.

    A request that is late takes effect after *delay* further requests of this object, or with :meth:`settle`.
    """

    def __init__(self, bucket: Bucket, script: FaultScript, clock: Clock, *, delay: int = 3) -> None:
        self._bucket, self._script, self._clock, self._delay = bucket, script, clock, delay
        self._lock = threading.RLock()
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._serial = 0
        self._listings: dict[tuple[str, str, int], Sequence[str]] = {}

    @property
    def url(self) -> str:
        return self._bucket.url

    def create(self, name: str, data: bytes) -> bool:
        return self._change("create", name, lambda: self._bucket.create(name, data))

    def put(self, name: str, data: bytes) -> None:
        self._change("put", name, lambda: self._bucket.put(name, data))

    def delete(self, names: Sequence[str]) -> None:
        self._change("delete", names[0] if names else "", lambda: self._bucket.delete(names))

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        with self._lock:
            self._refuse(self._next("get", name), name)
            return self._bucket.get(name, start, length)

    def size(self, name: str) -> int | None:
        with self._lock:
            self._refuse(self._next("get", name), name)
            return self._bucket.size(name)

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        with self._lock:
            fault = self._next("list", prefix)
            self._refuse(fault, prefix)
            key = (prefix, after, limit)
            names = self._bucket.list(prefix, after, limit)
            before = self._listings.get(key, ())
            self._listings[key] = names
            return before if fault is BucketFault.STALE else names

    def server_time(self) -> int:
        return self._bucket.server_time()

    def close(self) -> None:
        self._bucket.close()

    def settle(self) -> None:
        """All requests that are late take effect now."""
        with self._lock:
            late, self._late = self._late, []
        for _, act in late:
            act()

    def _change(self, kind: str, name: str, act: Callable[[], object]) -> bool:
        with self._lock:
            fault = self._next(kind, name)
            self._refuse(fault, name)
            if fault is BucketFault.LATE:
                self._late.append((self._serial + self._delay, act))
                raise UnknownOutcomeError(f"no answer to {kind} of {name!r}")
            answer = act()
            if fault is BucketFault.DOUBLED:
                self._late.append((self._serial + self._delay, act))
            if fault is BucketFault.REPLY_LOST:
                raise UnknownOutcomeError(f"no answer to {kind} of {name!r}")
            return bool(answer)

    def _refuse(self, fault: BucketFault, name: str) -> None:
        if fault is BucketFault.SLOW:
            self._clock.sleep(1.0)
        if fault in (BucketFault.LOST, BucketFault.CONFLICT):
            raise UnknownOutcomeError(f"{fault}: {name!r}")
        if fault is BucketFault.UNAVAILABLE:
            raise UnknownOutcomeError(f"503: {name!r}")

    def _next(self, kind: str, name: str) -> BucketFault:
        self._serial += 1
        due = [act for serial, act in self._late if serial <= self._serial]
        self._late = [(serial, act) for serial, act in self._late if serial > self._serial]
        for act in due:
            act()
        return self._script(kind, name)
