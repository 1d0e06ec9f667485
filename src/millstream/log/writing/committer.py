"""Stores append requests: encoded as blocks, in one transaction with the writer pointer."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.clock import Clock
from millstream.log.backend import Backend, Commit, VersionedValue, producer_key
from millstream.log.block_header import BlockOrigin
from millstream.log.errors import FencedError
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
        sequence = max((request.sequence for request in requests if request.sequence is not None), default=None)
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

    def raise_sequences(self, sequences: Mapping[str, int]) -> None:
        """Let the last sequence of each producer be at least that of *sequences*, durably.

        Raises :class:`FencedError` where another writer has changed one meanwhile.
        """
        log = self._spec.name
        present = self._backend.states(log, producer_key(""))
        for producer, sequence in sequences.items():
            state = present.get(producer, VersionedValue())
            if int(state.value or 0) < sequence and not self._backend.put_state(
                log, producer_key(producer), b"%d" % sequence, version=state.version
            ):
                raise FencedError(f"another writer has taken over log {log!r}: stop one of the two")
