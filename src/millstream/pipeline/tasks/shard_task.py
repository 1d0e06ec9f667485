"""Tasks of the job ``batch``: feed the batcher with the shares of a shard, and encode closed batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.anchoring.record_columns import encode_lines, seal_lines
from millstream.batching import Rulebook
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.column_engines import ClosedTables
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.message_columns import event_columns, out_of_range, split_out_of_range
from millstream.batching.message_events import TICK_SOURCE
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.message import MESSAGE_SCHEMA
from millstream.pipeline.shard_shares import events_of, read_share

BATCH_SCHEMA = pa.schema(
    [
        pa.field("batch", pa.string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64()),
        pa.field("closed_at", pa.int64()),
        pa.field("cut", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("amends", pa.list_(pa.string())),
        pa.field("root", pa.string()),
        pa.field("ids", pa.list_(pa.int64()), nullable=False),
        pa.field("lines", pa.binary()),
        pa.field("reason", pa.string()),
        pa.field("snapshot", pa.binary()),
    ]
)
"""One row a batch (header, message ids and lines as in ``docs/formats/records.md``), or a message that is in none:
then ``batch`` is null, ``reason`` says why, ``start`` is the time it was received, and ``ids`` holds its id. Where open
records are kept for another host, each shard has a last row with the ``snapshot`` of its batcher, and no ids."""

STEP_ROWS = 65_536
STEP_BYTES = 32_000_000
"""About how much is batched together: enough that a step's own cost does not count, little enough to lie in memory."""

_OUTPUT_BYTES = 4_000_000

_LISTS = {"ids": "events", "amends": "amends"}
"""Columns of lists, and their names in ``CLOSED_SCHEMA``."""

Share = tuple[int, int, bytes]
"""Shard, the earliest receive time in it, and its bytes."""


def batch_part(
    parts: Iterable[pa.RecordBatch], rules: Rulebook, bound: int, *, flush: bool, whole: bool
) -> Iterator[pa.RecordBatch]:
    """The batches and rejects of shares (``SHARD_SCHEMA``) that come sorted by shard, then by earliest receive time.

    *bound* is a time that no message of the log's range was received after. With *flush* every batch is closed at the
    end of its shard, else what is open there is given as a snapshot. *whole* shares hold whole messages, and their
    batches get lines and roots. Memory holds the open batches of one shard, and a step's messages.
    """
    for _, shares in groupby(_shares(parts), key=itemgetter(0)):
        feeder = ShardBatching(rules, whole=whole)
        for rows in feeder.run(shares, bound, flush=flush):
            yield from _in_pieces(rows)


def count_rows(rows: pa.RecordBatch) -> dict[str, int]:
    """How many *batches* are in *rows* (``BATCH_SCHEMA``), with how many messages *batched* in how many *bytes* of
    lines, how many messages are *rejected*, and how many of these for each reason."""
    batched = rows.filter(rows.column("batch").is_valid())
    reasons = pc.value_counts(pc.drop_null(rows.column("reason"))).to_pylist()
    return {
        "batches": batched.num_rows,
        "batched": pc.sum(pc.list_value_length(batched.column("ids"))).as_py() or 0,
        "bytes": pc.sum(pc.binary_length(rows.column("lines"))).as_py() or 0,
        "rejected": sum(each["counts"] for each in reasons),
        **{each["values"]: each["counts"] for each in reasons},
    }


def _shares(parts: Iterable[pa.RecordBatch]) -> Iterator[Share]:
    for part in parts:
        yield from zip(*(part.column(name).to_pylist() for name in ("shard", "received_from", "share")), strict=True)


class ShardBatching:
    """Feeds the shares of one shard to a batcher, and keeps the messages of which it has not spoken yet."""

    def __init__(self, rules: Rulebook, *, whole: bool) -> None:
        self._batcher = ColumnBatcher(rules)
        self._held = rules.patience if rules.amends else None
        self._sorted = rules.default.mode == "faithful"
        self._waiting = MESSAGE_SCHEMA.empty_table() if whole else None

    @property
    def waiting(self) -> int:
        """How many messages are held."""
        return 0 if self._waiting is None else len(self._waiting)

    def run(self, shares: Iterable[Share], bound: int, *, flush: bool) -> Iterator[pa.Table]:
        """Batch all of *shares*, and then what is certain at *bound*; the rest is closed or given as a snapshot."""
        pending: list[pa.Table] = []
        rows = size = 0
        for _, received_from, data in shares:
            if rows >= STEP_ROWS or size >= STEP_BYTES:
                yield from self.step(pending, min(received_from, MAX_SAFE_INTEGER))
                pending, rows, size = [], 0, 0
            pending.append(read_share(data))
            rows, size = rows + len(pending[-1]), size + len(data)
        yield from self.step(pending, bound)
        if flush:
            yield self._rows(self._batcher.flush())
        else:
            yield _snapshot_row(self._batcher.snapshot(), bound)

    def step(self, shares: list[pa.Table], bound: int) -> Iterator[pa.Table]:
        """Take *shares*; no later message was received before *bound*."""
        if self._waiting is not None:
            messages = pa.concat_tables([MESSAGE_SCHEMA.empty_table(), *shares])
            for reason, no_records in (("tick", _is_tick), ("time", out_of_range)):
                found = no_records(messages)
                if pc.any(found).as_py():
                    yield _no_record_rows(messages.filter(found), reason)
                    messages = messages.filter(pc.invert(found))
            self._waiting = pa.concat_tables([self._waiting, messages])
            parts = [event_columns(batch) for batch in messages.to_batches()]
            events = pa.concat_tables([EVENT_SCHEMA.empty_table(), *parts])
        else:
            events, beyond = split_out_of_range(events_of(shares))
            yield _reject_rows(beyond, None)
        if self._sorted:
            events = events.sort_by([("received_at", "ascending"), ("id", "ascending")])
        yield self._rows(self._batcher.step(events, bound))
        if self._waiting is not None and self._held is not None:
            young = pc.greater(self._waiting["event_time"], bound - self._held)
            self._waiting = self._waiting.filter(young).combine_chunks()

    def _rows(self, closed: ClosedTables) -> pa.Table:
        """*closed* as rows of :data:`BATCH_SCHEMA`; its messages are let go where nothing will speak of them again."""
        spoken = pa.concat_arrays([_one(closed.batches["events"]).flatten(), _one(closed.rejects["rejected"])])
        found = self._take(spoken)
        members = len(spoken) - len(closed.rejects)
        batches = _batch_rows(closed.batches, None if found is None else found.slice(0, members))
        return pa.concat_tables(
            [batches, _reject_rows(closed.rejects, None if found is None else found.slice(members))]
        )

    def _take(self, ids: Any) -> pa.Table | None:
        """The messages of *ids*, which are waiting no more unless they may be in an amendment too."""
        if self._waiting is None:
            return None
        rows = pc.index_in(ids, _one(self._waiting["id"]))
        if self._held is not None:
            return self._waiting.take(rows)
        left = np.ones(len(self._waiting), np.bool_)
        left[rows.to_numpy()] = False
        found = self._waiting.take(rows)
        self._waiting = self._waiting.filter(pa.array(left)).combine_chunks()
        return found


def _batch_rows(batches: pa.Table, messages: pa.Table | None) -> pa.Table:
    """*batches* (``CLOSED_SCHEMA``), whose members in order are *messages*, if they are to be encoded."""
    columns = {name: batches[name] for name in ("batch", "source", "start", "end", "closed_at", "cut", "kind")}
    columns |= {name: batches[of].cast(BATCH_SCHEMA.field(name).type) for name, of in _LISTS.items()}
    if messages is not None and len(batches):
        sizes = pc.list_value_length(batches["events"]).to_pylist()
        roots, lines = seal_lines(encode_lines(messages), sizes)
        columns |= {"root": pa.array(roots, pa.string()), "lines": pa.array(lines, pa.binary())}
    return _table(columns, len(batches))


def _reject_rows(rejects: pa.Table, messages: pa.Table | None) -> pa.Table:
    """*rejects*, whose messages in order are *messages*, if they are known."""
    count = len(rejects)
    columns: dict[str, Any] = {"ids": _lists(_one(rejects["rejected"])), "reason": rejects["reason"]}
    if messages is None:
        columns |= {"source": _repeated("", count), "start": pa.array(np.zeros(count, np.int64))}
    else:
        columns |= {"source": messages["source"], "start": messages["received_at"]}
    return _table(columns, count)


def _is_tick(messages: pa.Table) -> Any:
    return pc.equal(messages["source"], TICK_SOURCE)


def _no_record_rows(messages: pa.Table, reason: str) -> pa.Table:
    columns = {"source": messages["source"], "start": messages["received_at"], "ids": _lists(_one(messages["id"]))}
    return _table(columns | {"reason": _repeated(reason, len(messages))}, len(messages))


def _snapshot_row(snapshot: bytes, bound: int) -> pa.Table:
    columns = {"source": pa.array([""]), "start": pa.array([bound]), "ids": pa.array([[]], pa.list_(pa.int64()))}
    return _table(columns | {"snapshot": pa.array([snapshot])}, 1)


def _table(columns: dict[str, Any], count: int) -> pa.Table:
    """*columns* of :data:`BATCH_SCHEMA` with nulls for the others."""
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in BATCH_SCHEMA]
    return pa.table(arrays, schema=BATCH_SCHEMA)


def _lists(ids: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(ids) + 1, dtype=np.int32)), ids)


def _repeated(text: str, count: int) -> Any:
    return pa.array([text]).take(pa.array(np.zeros(count, np.int64)))


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _in_pieces(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """*rows* in record batches of a few megabytes."""
    if not len(rows):
        return
    most = max(1, len(rows) * _OUTPUT_BYTES // max(rows.nbytes, 1))
    yield from rows.combine_chunks().to_batches(max_chunksize=most)
