"""What a task of the job ``batch`` does with its part: feed the batcher source by source, encode what it closes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from millstream.anchoring.records import EncodedBatch, encode_batch
from millstream.batching import BatchConfig, Batcher, Outcome
from millstream.batching.messages import TICK_SOURCE, event_of
from millstream.core.message import Message, from_arrow
from millstream.pipeline.errors import PipelineInputError

BATCH_SCHEMA = pa.schema(
    [
        pa.field("batch", pa.string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64()),
        pa.field("closed_at", pa.int64()),
        pa.field("cut", pa.string()),
        pa.field("root", pa.string()),
        pa.field("ids", pa.list_(pa.int64()), nullable=False),
        pa.field("lines", pa.binary()),
        pa.field("reason", pa.string()),
    ]
)
"""One row a batch (header, message ids and lines as in ``docs/formats/records.md``), or a message that is in none:
then ``batch`` is null, ``reason`` says why, ``start`` is the time it was received, and ``ids`` holds its id."""

_CHUNK = 4096
_OUTPUT_BYTES = 4_000_000

Row = tuple[Any, ...]
"""The values of one row of :data:`BATCH_SCHEMA`, in its order."""


def batch_part(
    parts: Iterable[pa.RecordBatch], config: BatchConfig, bound: int, *, flush: bool
) -> Iterator[pa.RecordBatch]:
    """The batches and rejects of messages that come sorted by source, then receive time.

    *parts* have the columns of a message; *bound* is a time that no message of the log's range was received after; with
    *flush* every batch is closed at the end of its source. Memory holds the open batches of one source, and a few
    megabytes of rows on either side. Raises :class:`PipelineInputError` where the order is another.
    """
    rows: list[Row] = []
    size = 0
    for row in _feed(parts, config, bound, flush):
        rows.append(row)
        size += len(row[8] or b"") + 200
        if size >= _OUTPUT_BYTES:
            yield _to_arrow(rows)
            rows, size = [], 0
    if rows:
        yield _to_arrow(rows)


def _feed(parts: Iterable[pa.RecordBatch], config: BatchConfig, bound: int, flush: bool) -> Iterator[Row]:
    feeder: Feeder | None = None
    for part in parts:
        for messages in _runs(part):
            if messages[0].source == TICK_SOURCE:
                yield from (_reject_row(message, "tick") for message in messages)
                continue
            if feeder is None or feeder.source != messages[0].source:
                if feeder is not None:
                    yield from feeder.finish(bound, flush=flush)
                feeder = Feeder(messages[0].source, config)
            yield from feeder.feed(messages)
    if feeder is not None:
        yield from feeder.finish(bound, flush=flush)


def _runs(part: pa.RecordBatch) -> Iterator[list[Message]]:
    """*part* in chunks of a few thousand messages that have one source."""
    for offset in range(0, part.num_rows, _CHUNK):
        run: list[Message] = []
        for message in from_arrow(part.slice(offset, _CHUNK)):
            if run and run[0].source != message.source:
                yield run
                run = []
            run.append(message)
        yield run


class Feeder:
    """Feeds the messages of one source to a batcher, and keeps those of which it has not spoken yet."""

    def __init__(self, source: str, config: BatchConfig) -> None:
        self.source = source
        self._batcher = Batcher.of(config)
        self._waiting: dict[int, Message] = {}
        self._clock: int | None = None

    @property
    def waiting(self) -> int:
        """How many messages are held."""
        return len(self._waiting)

    def feed(self, messages: list[Message]) -> Iterator[Row]:
        """Take *messages*, received one after the other and none before those taken earlier."""
        clock = messages[-1].received_at
        assert clock is not None
        if self._clock is not None and clock < self._clock:
            raise PipelineInputError(f"messages of source {self.source!r} are not sorted by received_at")
        self._clock = clock
        self._waiting.update((message.id, message) for message in messages)
        yield from self._rows(self._batcher.receive_many([event_of(message) for message in messages]))
        yield from self._rows(self._batcher.advance(clock))

    def finish(self, bound: int, *, flush: bool) -> Iterator[Row]:
        """Close what is certain at *bound*, and with *flush* the rest."""
        yield from self._rows(self._batcher.advance(bound))
        if flush:
            yield from self._rows(self._batcher.flush())

    def _rows(self, outcome: Outcome) -> Iterator[Row]:
        take = self._waiting.pop
        for reject in outcome.rejects:
            yield _reject_row(take(reject.rejected), reject.reason)
        for batch in outcome.batches:
            yield _batch_row(encode_batch(batch, [take(number) for number in batch.events]))


def _batch_row(batch: EncodedBatch) -> Row:
    h = batch.header
    return (h.batch, h.source, h.start, h.end, h.closed_at, h.cut, h.root, batch.ids, batch.lines, None)


def _reject_row(message: Message, reason: str) -> Row:
    return (None, message.source, message.received_at, None, None, None, None, (message.id,), None, reason)


def _to_arrow(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMA)
