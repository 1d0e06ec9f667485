"""Stores append requests: encoded as blocks, in one transaction with the writer pointer."""

from __future__ import annotations

from millstream.core.clock import Clock
from millstream.log.backend import Backend, Commit, producer_key
from millstream.log.block_header import BlockOrigin
from millstream.log.spec import LogSpec
from millstream.log.writing.append_request import AppendRequest, encode_requests
from millstream.log.writing.lease import WriterLease


class Committer:
    """Commits append requests to one log under *lease*. Used by one thread at a time."""

    def __init__(self, spec: LogSpec, producer: str, lease: WriterLease, backend: Backend, clock: Clock) -> None:
        self._spec = spec
        self._producer = producer
        self._lease = lease
        self._backend = backend
        self._clock = clock
        self._received_at = backend.head(spec.name).received_at
        self.sequence = int(backend.get_state(spec.name, producer_key(producer)).value or 0)
        """The last durable sequence of *producer* (0 at first)."""

    def commit(self, requests: list[AppendRequest], previous: int) -> int:
        """Store *requests* after the id *previous*; returns the last id. Raises :class:`StorageError`."""
        now = max(self._clock.now(), self._received_at)  # receive times never go back
        sequence = max([request.sequence for request in requests if request.sequence is not None], default=None)
        origin = BlockOrigin(self._spec.name, self._lease.epoch, self._producer, sequence or 0)
        blocks = encode_requests(requests, previous + 1, now, self._spec, origin)
        last = blocks[-1].header.last_id
        commit = Commit(
            epoch=self._lease.epoch,
            previous_id=previous,
            last_id=last,
            received_at=now,
            blocks=blocks,
            producer=self._producer,
            sequence=sequence,
        )
        self._backend.commit(self._spec.name, commit)
        self._received_at = now
        self.sequence = self.sequence if sequence is None else sequence
        return last
