"""The result of a read: a run of messages, available as Arrow or as message objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from millstream.core.message import Message
from millstream.log.block import Block
from millstream.log.block_header import BlockError
from millstream.log.errors import CorruptBlockError
from millstream.log.ids import IdRange


class BlockGroup:
    """Consecutive blocks of a log that are decoded together, once, however many batches are cut from them."""

    def __init__(self, log: str, blocks: Sequence[Block]) -> None:
        self.log = log
        self.ids = IdRange(blocks[0].header.first_id, blocks[-1].header.last_id)
        self.raw_bytes = sum(block.header.raw_bytes for block in blocks)
        self._blocks = blocks
        self._decoded: dict[tuple[str, ...] | None, pa.RecordBatch] = {}

    def decode(self, columns: Sequence[str] | None) -> pa.RecordBatch:
        """All messages, or those *columns* of them. Raises :class:`CorruptBlockError`."""
        names = None if columns is None else tuple(columns)
        if names not in self._decoded:
            parts = [self._decode_block(block, names) for block in self._blocks]
            joined = pa.Table.from_batches(parts).combine_chunks().to_batches() if len(parts) > 1 else parts
            self._decoded[names] = joined[0]
        return self._decoded[names]

    def _decode_block(self, block: Block, columns: Sequence[str] | None) -> pa.RecordBatch:
        try:
            return block.decode(columns)
        except BlockError as error:
            raise CorruptBlockError(self.log, block.header.first_id, str(error)) from error


class Batch:
    """Consecutive messages of a log.

    ``len(batch)`` is their number; iterating yields :class:`Message` one by one, :meth:`bodies` ids and bodies alone;
    ``ids`` is what :meth:`millstream.log.Reader.ack` takes.
    """

    def __init__(self, group: BlockGroup, ids: IdRange, columns: Sequence[str] | None = None) -> None:
        """The messages *ids* of *group*; *columns* are those of :attr:`arrow`."""
        self._group = group
        self._columns = columns
        self.ids = ids

    @property
    def first_id(self) -> int:
        return self.ids.first

    @property
    def last_id(self) -> int:
        return self.ids.last

    @property
    def raw_bytes(self) -> int:
        """The bytes of all messages that are decoded along with these, before they were compressed."""
        return self._group.raw_bytes

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<Batch of {self._group.log!r}, ids {self.first_id} to {self.last_id}>"

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The messages as a record batch of ``MESSAGE_SCHEMA``, or the columns that were asked for.

        Raises :class:`CorruptBlockError`.
        """
        return self.decode(self._columns)

    def __iter__(self) -> Iterator[Message]:
        batch = self.arrow if self._columns is None else self.decode(None)
        return _messages(batch, range(self.first_id, self.last_id + 1))

    def at(self, rows: Sequence[int]) -> Iterator[Message]:
        """The messages of *rows* (0 is the first message) alone. Raises :class:`CorruptBlockError`."""
        chosen = self.decode(None).take(pa.array(rows, pa.int64()))
        return _messages(chosen, [self.first_id + row for row in rows])

    def extended(self) -> Batch:
        """This batch with the messages behind it that are decoded along with it, since they lie in the same blocks."""
        return Batch(self._group, IdRange(self.ids.first, self._group.ids.last), self._columns)

    def bodies(self) -> Iterator[tuple[int, bytes]]:
        """The id and the body of each message, for those who need no more: half the work of :class:`Message`."""
        return zip(self.ids, self.decode(["body"]).column(0).to_pylist(), strict=True)

    def decode(self, columns: Sequence[str] | None) -> pa.RecordBatch:
        """All columns of the messages, or those *columns*; each combination is decoded once.

        Raises :class:`CorruptBlockError`.
        """
        whole = self._group.decode(columns)
        return whole if self.ids == self._group.ids else whole.slice(self.first_id - self._group.ids.first, len(self))


def _messages(batch: pa.RecordBatch, ids: Iterable[int]) -> Iterator[Message]:
    """The messages in the columns of *batch*, which have the *ids*."""
    received, event = batch.column("received_at"), batch.column("event_time")
    times = _times(received)
    return map(
        Message,
        batch.column("body").to_pylist(),
        _texts(batch.column("key")),
        _texts(batch.column("source")),
        times if event is received or _is_same(event, received) else _times(event),
        times,
        _headers(batch.column("headers")),
        ids,
    )


def _times(array: Any) -> Any:
    """The times as Python's numbers; often they are all the same."""
    numbers = array.to_numpy()
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        return itertools.repeat(int(numbers[0]))  # shared by two columns, so without an end
    return numbers.tolist()


def _is_same(one: Any, other: Any) -> bool:
    """Whether two columns of numbers are the same memory."""
    return (one.buffers()[1].address, one.offset) == (other.buffers()[1].address, other.offset)


def _texts(array: Any) -> Any:
    values = array.buffers()[2]
    return array.to_pylist() if values is not None and values.size else itertools.repeat("")


def _headers(array: Any) -> Any:
    if not len(array.flatten()):
        return itertools.repeat(())
    return (tuple((pair["name"], pair["value"]) for pair in pairs) for pairs in array.to_pylist())
