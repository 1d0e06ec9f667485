"""Which states a log has: a list of objects that are numbered without a gap, since listings of a bucket may be stale.

A key is added before its first version is created, and is never taken out. So reading the list to its end gives every
state, and no process trims what a reader waits for whose position a listing does not show yet.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.clock import Clock
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.small_objects import decode_object

_PAGE = 1000


class StateKey(msgspec.Struct, frozen=True):
    """The object of a key; the nonce tells two that add the same key apart."""

    key: str
    nonce: str


class StateKeys:
    """The keys of the states of one log, in the order in which they were added. Thread-safe.

    *pool* is where requests run side by side when a long list is read for the first time.
    """

    def __init__(self, bucket: Bucket, names: LogNames, clock: Clock, pool: ThreadPoolExecutor) -> None:
        self._bucket, self._names, self._clock, self._pool = bucket, names, clock, pool
        self._refreshing = threading.Lock()
        self._keys: list[str] = []

    def refresh(self) -> Sequence[str]:
        """All keys that were added before this call, and maybe some that are added meanwhile."""
        with self._refreshing:
            if not self._keys:
                self._keys += self._listed()
            while (key := self._read(len(self._keys) + 1)) is not None:
                self._keys.append(key)
            return list(self._keys)

    def add(self, key: str) -> None:
        """Add *key*, unless it is there."""
        data = msgspec.json.encode(StateKey(key, secrets.token_hex(8)))
        while key not in (keys := self.refresh()):
            create_object(self._bucket, self._names.state_key(len(keys) + 1), data, self._clock)

    def _listed(self) -> Iterator[str]:
        """The first keys that a listing shows; it may be incomplete."""
        listed = self._bucket.list(self._names.state_keys, limit=_PAGE)
        for key in self._pool.map(self._read, range(1, len(listed) + 1)):
            if key is None:
                return
            yield key

    def _read(self, number: int) -> str | None:
        name = self._names.state_key(number)
        data = self._bucket.get(name)
        return None if data is None else decode_object(name, data, StateKey).key
