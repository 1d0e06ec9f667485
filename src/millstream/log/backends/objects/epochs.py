"""The writers of a log: epochs, each taken once, and the lease of the newest."""

from __future__ import annotations

import secrets
import threading

import msgspec

from millstream.core.clock import Clock
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.dense_names import find_newest
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.small_objects import decode_object


class LeaseState(msgspec.Struct, frozen=True):
    """The holder of an epoch (empty: it was released), and its end (microseconds by the server's clock)."""

    holder: bytes = b""
    until: int = 0
    nonce: str = ""


class Epochs:
    """The epochs of one log. Thread-safe.

    The object of an epoch says who took it. The holder replaces its lease alone; it is advice for others, and what
    keeps a writer from writing are the epoch and the fence of its successor.
    """

    def __init__(self, bucket: Bucket, names: LogNames, clock: Clock) -> None:
        self._bucket, self._names, self._clock = bucket, names, clock
        self._lock = threading.Lock()
        self._newest = 0
        self._taken = LeaseState()

    def newest(self) -> int:
        """The newest epoch; 0 where no process has ever written."""
        known = self._newest
        number, data = find_newest(lambda number: self._bucket.get(self._names.epoch(number)), known)
        if data is not None:
            self._learn(number, decode_object(self._names.epoch(number), data, LeaseState))
        return self._newest

    def current(self) -> tuple[int, LeaseState]:
        """The newest epoch and its lease."""
        epoch = self.newest()
        with self._lock:
            taken = self._taken
        return epoch, (self._lease(epoch) or taken) if epoch else LeaseState()

    def take(self, epoch: int, holder: bytes, until: int) -> bool:
        """Make *holder* the one of *epoch*, which no process has taken; False where a process has."""
        lease = LeaseState(holder, until, secrets.token_hex(8))
        made = create_object(self._bucket, self._names.epoch(epoch), msgspec.json.encode(lease), self._clock)
        if made:
            self._learn(epoch, lease)
        return made

    def renew(self, epoch: int, until: int) -> bool:
        """Prolong the lease of *epoch*; False where it was released or replaced."""
        newest, lease = self.current()
        if newest != epoch or not lease.holder:
            return False
        self._bucket.put(self._names.lease(epoch), msgspec.json.encode(LeaseState(lease.holder, until)))
        return self.newest() == epoch

    def release(self, epoch: int) -> None:
        """End the lease of *epoch*."""
        if self.newest() == epoch:
            self._bucket.put(self._names.lease(epoch), msgspec.json.encode(LeaseState()))

    def _lease(self, epoch: int) -> LeaseState | None:
        name = self._names.lease(epoch)
        data = self._bucket.get(name)
        return None if data is None else decode_object(name, data, LeaseState)

    def _learn(self, number: int, taken: LeaseState) -> None:
        with self._lock:
            if number > self._newest:
                self._newest, self._taken = number, taken
