"""The order-free rule over whole columns, for history: Arrow in, batches out, no Python object for an event.

It gives what :class:`~millstream.batching.batcher.Batcher` gives for the same records (a property test holds the two
together), at many times the speed, but needs all of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_config import BatchConfig
from millstream.batching.errors import ColumnsError, ConfigError
from millstream.batching.event import EventBatch, Kind
from millstream.batching.identity import make_batch
from millstream.batching.window_boundaries import Flags, Integers, WindowBoundaries, find_window_boundaries

BATCH_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("closed_at", pa.int64()),
        pa.field("cut", pa.string(), nullable=False),
        pa.field("events", pa.large_list(pa.field("element", pa.int64(), nullable=False)), nullable=False),
    ]
)
"""One row a batch, as :class:`~millstream.batching.event.EventBatch` has it, without the identity."""

REJECT_SCHEMA = pa.schema(
    [pa.field("rejected", pa.int64(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""One row a record that is in no batch."""

FARTHEST = 2**60
"""Times and rules must stay below this, either way from zero, so that no sum of them overflows 64 bits."""

_KINDS = {
    "id": "int64",
    "event_time": "int64",
    "received_at": "int64",
    "source": "string",
    "key": "string",
    "digest": "string",
    "size": "int64",
}


class CutResult(NamedTuple):
    """The batches (:data:`BATCH_SCHEMA`, by source and start) and rejects (:data:`REJECT_SCHEMA`) of *events*.

    ``rows`` are the places in *events* of the batched records, batch after batch, by event time and key; ``closing`` is
    the clock at which each batch is certain, whether it was reached or not.
    """

    config: BatchConfig
    batches: pa.Table
    rejects: pa.Table
    events: pa.Table
    rows: Integers
    closing: Integers

    def named(self, kind: Kind = "batch") -> Iterator[EventBatch]:
        """The batches one by one, as *kind*, under their identities; this does make Python objects."""
        columns = self.events.select(["event_time", "key", "digest", "received_at", "id", "size"]).take(self.rows)
        rows = zip(*(column.to_pylist() for column in columns.columns), strict=True)
        batches = self.batches.select(["source", "closed_at", "cut"]).to_pylist()
        sizes = pc.list_value_length(self.batches["events"]).to_pylist()
        for batch, size in zip(batches, sizes, strict=True):
            members = list(islice(rows, size))
            yield make_batch(self.config, batch["source"], members, batch["closed_at"], batch["cut"], kind=kind)


class _Columns(NamedTuple):
    """The records as arrays of one entry a row; source and key as ranks in their sorted values."""

    table: pa.Table
    time: Integers
    received_at: Integers
    source: Integers
    key: Integers
    sources: pa.Array


def cut_columns(events: pa.Table | pa.RecordBatch, config: BatchConfig, clock: int | None = None) -> CutResult:
    """Batch all of *events* at once, as a batcher does that receives them, is advanced to *clock* and flushed.

    *events* has the columns id, event_time, received_at (int64), source, key (string) and optionally digest (string)
    and size (int64, bytes, without it 0), no value missing, rows in any order. Raises
    :class:`~millstream.batching.errors.ColumnsError` where they have another shape,
    :class:`~millstream.batching.errors.ConfigError` for the mode ``faithful`` and for a late policy other than reject.
    """
    if config.mode != "order-free":
        raise ConfigError(f"columns can be batched only in mode order-free: use a Batcher for mode {config.mode}")
    if config.policy != "reject":
        raise ConfigError(f"columns can be batched only with late=reject: use a Batcher for late={config.policy}")
    columns = _read(events, config)
    late = columns.time < columns.received_at - config.max_delay
    future = columns.time > columns.received_at + config.lead
    kept, copies, same = _without_copies(columns, _sorted(columns, np.flatnonzero(~(late | future))))
    borders = find_window_boundaries(
        kept.source,
        kept.key,
        kept.time,
        config.window,
        midpoint=config.conflict_cut == "midpoint",
        caps=config.caps,
        size=columns.table["size"].to_numpy()[kept.rows] if config.caps else None,
    )
    refused: dict[str, Integers | Flags] = {
        "late": late,
        "future": future,
        "duplicate": copies[same],
        "conflicting_duplicate": copies[~same],
    }
    closing = borders.decided + config.max_delay
    batches = _batches(columns, kept, borders, closing, clock)
    return CutResult(config, batches, _rejects(columns.table, refused), columns.table, kept.rows, closing)


def split_refused(events: pa.Table, config: BatchConfig) -> tuple[pa.Table, pa.Table]:
    """Those of *events* that *config* takes, and the rejects (:data:`REJECT_SCHEMA`) of those that it does not.

    That is a question about each record alone (``lateness.py``). Raises as :func:`cut_columns` does.
    """
    time, received_at = _times(events, config)
    late, future = time < received_at - config.max_delay, time > received_at + config.lead
    if not (late.any() or future.any()):
        return events, REJECT_SCHEMA.empty_table()
    return events.filter(pa.array(~(late | future))), _rejects(events, {"late": late, "future": future})


def _read(events: pa.Table | pa.RecordBatch, config: BatchConfig) -> _Columns:
    table = events if isinstance(events, pa.Table) else pa.Table.from_batches([events])
    if "digest" not in table.column_names:
        table = table.append_column("digest", pa.array([""], pa.string()).take(np.zeros(len(table), np.int64)))
    if "size" not in table.column_names:
        table = table.append_column("size", pa.array(np.zeros(len(table), np.int64)))
    for name, kind in _KINDS.items():
        _check(table, name, kind)
    time, received_at = _times(table, config)
    if config.caps is not None and len(table):
        _check_sizes(table["size"].to_numpy())
    source, sources = _ranked(table["source"])
    key, _ = _ranked(table["key"])
    return _Columns(table, time, received_at, source, key, sources)


def _times(table: pa.Table, config: BatchConfig) -> tuple[Integers, Integers]:
    """Event and receive times, which like the rules must be such that no sum of them overflows."""
    time, received_at = table["event_time"].to_numpy(), table["received_at"].to_numpy()
    rules = np.array([config.window, config.max_delay, config.lead])
    for name, values in (
        ("an event time", time),
        ("a receive time", received_at),
        ("window, max_delay or lead", rules),
    ):
        if len(values) and not -FARTHEST < values.min() <= values.max() < FARTHEST:
            raise ColumnsError(
                f"{name} is not within ±{FARTHEST - 1:,} units of time: use a larger unit, such as milliseconds"
            )
    return time, received_at


def _check(table: pa.Table, name: str, kind: str) -> None:
    if table.column_names.count(name) != 1:
        raise ColumnsError(
            f"the table of events must have exactly one column {name}; its columns: {', '.join(table.column_names)}"
        )
    column = table[name]
    if str(column.type) != kind or column.null_count:
        fault = f"has the type {column.type}" if str(column.type) != kind else f"has {column.null_count:,} nulls"
        raise ColumnsError(f"column {name} {fault}: cast the column to {kind} without nulls")


def _check_sizes(size: Integers) -> None:
    """Sizes are added up over all the records, which must not overflow."""
    if size.min() < 0 or int(size.max()) * len(size) >= FARTHEST:
        raise ColumnsError(
            f"sizes must be zero or more, and their sum below {FARTHEST:,} bytes: split the history into parts"
        )


def _ranked(column: pa.ChunkedArray) -> tuple[Integers, pa.Array]:
    """The place of each value among the sorted distinct values, and these."""
    encoded = column.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[encoded.indices.to_numpy()], encoded.dictionary.take(order)


class _SortedRows(NamedTuple):
    """Records by source, event time and key: their places in the columns, and these three of each."""

    rows: Integers
    source: Integers
    time: Integers
    key: Integers


def _sorted(columns: _Columns, rows: Integers) -> _SortedRows:
    """*rows* in order: by one sort of single words that hold all that matters, where they can hold it."""
    source, time, key = columns.source, columns.time, columns.key
    whole = len(rows) == len(source)
    if not whole:
        source, time, key = source[rows], time[rows], key[rows]
    if not len(rows):
        return _SortedRows(rows, source, time, key)
    first = int(time.min())
    widths = [int(top).bit_length() for top in (source.max(), int(time.max()) - first, key.max(), len(rows) - 1)]
    if sum(widths) > 63:
        order = np.lexsort((key, time, source))
        return _SortedRows(rows[order], source[order], time[order], key[order])
    place, source, time, key = _sort_words((source, time - first, key), widths)
    time += first
    return _SortedRows(place if whole else rows[place], source, time, key)


def _sort_words(columns: Sequence[Integers], widths: Sequence[int]) -> list[Integers]:
    """The row numbers in the order of *columns*, then these columns in that order.

    *widths* are the bits that each column, and the row numbers, need; a word is sorted far faster than looked up.
    """
    words = np.zeros(len(columns[0]), np.int64)
    for column, width in zip([*columns, np.arange(len(words))], widths, strict=True):
        words <<= width
        words |= column
    words.sort()
    found = []
    for width in reversed(widths):
        found.append(words & ((1 << width) - 1))
        words >>= width
    return [found[0], *reversed(found[1:])]


def _without_copies(columns: _Columns, found: _SortedRows) -> tuple[_SortedRows, Integers, Flags]:
    """What to keep of *found*; the copies of it; and for each copy whether its digest is that of the kept one."""
    head = np.ones(len(found.rows), np.bool_)
    head[1:] = (found.time[1:] != found.time[:-1]) | (found.key[1:] != found.key[:-1])
    head[1:] |= found.source[1:] != found.source[:-1]
    if head.all():
        return found, found.rows[:0], head[:0]
    group = np.cumsum(head) - 1
    shared = np.flatnonzero(np.bincount(group)[group] > 1)
    order = found.rows.copy()
    order[shared] = _by_digest(columns, order[shared], group[shared])
    kept, copies = order[head], order[~head]
    digest = columns.table["digest"]
    same = pc.equal(digest.take(copies), digest.take(kept[group[~head]])).to_numpy()
    return _SortedRows(kept, found.source[head], found.time[head], found.key[head]), copies, same


def _by_digest(columns: _Columns, rows: Integers, group: Integers) -> Integers:
    """*rows* by group, and within it the one to keep first: lowest digest, then first received, then lowest id."""
    table = columns.table.select(["digest", "received_at", "id"]).take(rows).append_column("group", pa.array(group))
    keys = [(name, "ascending") for name in ("group", "digest", "received_at", "id")]
    order: Integers = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
    return rows[order]


def _batches(
    columns: _Columns, kept: _SortedRows, borders: WindowBoundaries, closing: Integers, clock: int | None
) -> pa.Table:
    time, source = kept.time, kept.source
    begins, ends = borders.begins, borders.ends
    unsettled = np.ones(len(begins), np.bool_) if clock is None else closing > clock
    last = source[begins] != np.append(source, -1)[ends]
    open_ended = last & unsettled & ~borders.clashed & ~borders.capped
    cut: npt.NDArray[np.int64] = np.select([borders.clashed, borders.capped, open_ended], [1, 2, 3])
    arrays = [
        columns.sources.take(source[begins]),
        time[begins],
        time[ends - 1],
        pa.array(closing, mask=unsettled),
        pa.array(["window", "conflict", "size", "flush"]).take(cut),
        pa.LargeListArray.from_arrays(np.append(0, ends), columns.table["id"].to_numpy()[kept.rows]),
    ]
    return pa.table(arrays, schema=BATCH_SCHEMA)


def _rejects(events: pa.Table, refused: Mapping[str, Integers | Flags]) -> pa.Table:
    """*refused* holds rows of *events*, or a flag for each row, by reason."""
    ids = events["id"].to_numpy()
    chosen = [ids[rows] for rows in refused.values()]
    reasons = np.repeat(np.arange(len(refused)), [len(rows) for rows in chosen])
    return pa.table([np.concatenate(chosen), pa.array(list(refused)).take(reasons)], schema=REJECT_SCHEMA)
