"""Packs on their way into the store: encoded as blocks, in one commit with the writer's pointer."""

from __future__ import annotations

from millstream.core.clock import Clock
from millstream.log.backend import Backend, Commit, producer_key
from millstream.log.block import Origin
from millstream.log.lease import Lease
from millstream.log.pack import Pack, encode_packs
from millstream.log.spec import LogSpec


class Committer:
    """Commits packs to one log under *lease*. Used by one thread at a time."""

    def __init__(self, spec: LogSpec, producer: str, lease: Lease, backend: Backend, clock: Clock) -> None:
        self._spec = spec
        self._producer = producer
        self._lease = lease
        self._backend = backend
        self._clock = clock
        self._received_at = backend.head(spec.name).received_at
        self.sequence = int(backend.get_state(spec.name, producer_key(producer)).value or 0)
        """The last durable sequence of *producer* (0 at first)."""

    def commit(self, packs: list[Pack], previous: int) -> int:
        """Store *packs* after the id *previous*; returns the last id. Raises :class:`FencedError`, `StorageError`."""
        now = max(self._clock.now(), self._received_at)  # receive times never go back
        sequence = max((pack.sequence for pack in packs if pack.sequence is not None), default=None)
        origin = Origin(self._spec.name, self._lease.epoch, self._producer, sequence or 0)
        blocks = encode_packs(packs, previous + 1, now, self._spec, origin)
        last = blocks[-1].header.last_id
        commit = Commit(self._lease.epoch, previous, last, now, blocks, self._producer, sequence)
        self._backend.commit(self._spec.name, commit)
        self._received_at = now
        self.sequence = self.sequence if sequence is None else sequence
        return last
