"""One log of a store: write it, read it, ask how it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from millstream.log.batch import Batch
from millstream.log.errors import LogInputError
from millstream.log.ids import BlockRange, IdRange
from millstream.log.lease import Lease, current_writer
from millstream.log.reader import Pauses, Position, Reader, consumer_key, decode_position, encode_position
from millstream.log.scan import cut_batches, scan_blocks
from millstream.log.spec import LogSpec
from millstream.log.surroundings import Surroundings
from millstream.log.verification import Verification, verify_log
from millstream.log.writer import Writer


class LogInfo(msgspec.Struct, frozen=True):
    """How a log stands. ``bytes`` as stored; times in microseconds, None in an empty log.

    ``consumers`` maps each consumer to its pointer; ``writer`` names the present writer.
    """

    name: str
    first_id: int
    last_id: int
    count: int
    blocks: int
    bytes: int
    min_event_time: int | None
    max_event_time: int | None
    min_received_at: int | None
    max_received_at: int | None
    durability: str
    consumers: Mapping[str, int]
    writer: str | None


class Log:
    """An endless sequence of messages with the ids 1, 2, 3 … Made by :meth:`millstream.log.LogStore.log`."""

    def __init__(self, spec: LogSpec, around: Surroundings) -> None:
        self._around = around
        self._backend = around.backend
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def __repr__(self) -> str:
        return f"<Log {self.name!r} in {self._backend.url}>"

    @property
    def bodies_only(self) -> bool:
        """Whether the store has no place for anything but the bodies of messages: no source, key, headers, times."""
        return self._around.bodies_only

    def writer(self, producer: str = "") -> Writer:
        """The one writer of this log, under a fencing lease; *producer* names whose sequences it keeps.

        Raises :class:`WriterBusyError`, which names the holder; a holder that is dead or has not renewed its lease
        is replaced, and gets :class:`FencedError` at its next append.
        """
        lease = Lease.take(self._backend, self.name, self._around.clock, self._around.lease_seconds)
        try:
            return Writer(self.spec, producer, lease, self._around)
        except BaseException:
            lease.release()
            raise

    def reader(self, consumer: str) -> Reader:
        """A reader that goes on after what *consumer* has acknowledged."""
        return Reader(self.name, consumer, self._around)

    def read(
        self, first_id: int = 1, last_id: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Batch]:
        """The messages from *first_id* to *last_id* (the end of the log without it), for no consumer in particular.

        With *columns* only those are decoded into ``batch.arrow``. Raises :class:`LogInputError`, and while the
        batches are taken :class:`CorruptBlockError` and :class:`MissingBlockError`.
        """
        ids = self._ids(first_id, last_id)
        blocks = scan_blocks(self._backend, self.name, ids)
        return cut_batches(self.name, blocks, ids, max_messages=65_536, columns=columns)

    def follow(self, first_id: int = 1, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Like :meth:`read` from *first_id* on, and never ends: at the end of the log it waits for more."""
        pauses = Pauses()
        while True:
            turn = self._around.tail.turn
            for batch in self.read(first_id, columns=columns):
                yield batch
                first_id, pauses = batch.last_id + 1, Pauses()
            self._around.tail.wait(turn, pauses.next())

    def first_id_since(self, time: int) -> int:
        """The id of the first message that was received at *time* (microseconds) or later; one past the end without.

        An importer may set receive times in any order: this is the first such message, not the last one before it.
        """
        block = self._backend.first_block_since(self.name, time)
        if block is None:
            return self.last_id + 1
        for batch in self.read(block.first_id, block.last_id, columns=["received_at"]):
            late = np.flatnonzero(batch.arrow.column("received_at").to_numpy() >= time)
            if len(late):
                return batch.first_id + int(late[0])
        return block.last_id + 1

    def block_ranges(self, first_id: int = 1, last_id: int | None = None) -> Sequence[BlockRange]:
        """The blocks from *first_id* to *last_id* with their sizes, for sharing out work; nothing is read."""
        ids = self._ids(first_id, last_id)
        return [
            BlockRange(max(block.first_id, ids.first), min(block.last_id, ids.last), block.bytes)
            for block in self._backend.ranges(self.name, ids.first, ids.last)
        ]

    def info(self) -> LogInfo:
        """How the log stands: a look at the index of its blocks, not at the blocks."""
        found: dict[str, Any] = msgspec.structs.asdict(self._backend.statistics(self.name))
        consumers = {name: decode_position(state).pointer for name, state in self._consumer_states().items()}
        writer = current_writer(self._backend, self.name)
        return LogInfo(name=self.name, durability=self._backend.durability, consumers=consumers, writer=writer, **found)

    def pointer(self, consumer: str) -> int:
        """The id up to which *consumer* has acknowledged everything (0: nothing)."""
        return decode_position(self._backend.get_state(self.name, consumer_key(consumer))).pointer

    def set_pointer(self, consumer: str, last_id: int) -> None:
        """Let *consumer* have acknowledged exactly the ids up to *last_id*, durably; an open reader is fenced."""
        if not 0 <= last_id <= self.last_id:
            raise LogInputError(f"a pointer of {self.name!r} is 0 to {self.last_id}, not {last_id}")
        key, value = consumer_key(consumer), encode_position(Position(last_id))
        while not self._backend.put_state(
            self.name, key, value, version=self._backend.get_state(self.name, key).version
        ):
            pass

    @property
    def last_id(self) -> int:
        """The last durable id (0 in an empty log)."""
        return self._backend.head(self.name).last_id

    def verify(self) -> Verification:
        """Check every checksum and that no id is missing; raises nothing for what it finds."""
        return verify_log(self._backend, self.name)

    def _consumer_states(self) -> Mapping[str, Any]:
        return self._backend.states(self.name, "consumer/")

    def _ids(self, first_id: int, last_id: int | None) -> IdRange:
        if first_id < 1:
            raise LogInputError(f"ids begin at 1, not {first_id}")
        end = self.last_id
        return IdRange(first_id, end if last_id is None else min(last_id, end))
