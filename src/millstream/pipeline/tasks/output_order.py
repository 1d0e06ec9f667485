"""The order of a batch job's output: parts that follow each other in time, each of about as many messages.

How many parts there are follows from the number of messages, and where one ends from a sample of their times and
sources, which tasks take at evenly spaced places of the log. Neither depends on how many executors have joined, and the
batches, in their order, are the same for any number of parts.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.batching import Rulebook
from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.pipeline.planning.log_range import LogRange, sampled_ids
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_shares import write_share
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA
from millstream.stores.tiers import open_log_store

PART_ROWS = 250_000
"""About how many messages a part of a large log holds."""

_LEAST_ROWS = 5_000
"""A smaller part does not justify a separate task."""

_MOST_PARTS = 4096

PLACES_A_PART = 8
_PLACE_ROWS = 256
_PLACE_TIMES = 16
"""A sample is taken at so many places for each part: some messages in a row, and of them so many times."""

_PLACES_A_TASK = 64

_ORDER = [(name, "ascending") for name in ("start", "source", "named", "batch", "id")]

PARTED_SCHEMA = pa.schema([pa.field("part", pa.int32(), nullable=False), pa.field("rows", pa.binary(), nullable=False)])
"""Some rows of a batch job (``BATCH_SCHEMA``) as one Arrow IPC stream, and the part of the output they belong to.

A row a batch would cost Spark more than making it: conversion to its own rows and back, and a sort of them."""

_KEYS = pa.schema(
    [
        *(BATCH_SCHEMA.field(name) for name in ("start", "source", "batch")),
        *(pa.field(name, pa.int64()) for name in ("named", "id", "bytes")),
    ]
)
"""The sort columns of rows (``named``: 0 for those that are no batch), and about how many bytes each has."""

_ROW_BYTES, _ID_BYTES = 250, 8
"""About what a row has without its lines and ids."""

_PIECE_BYTES = 8 << 20
_HELD_BYTES = 64 << 20

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("time", pa.int64(), nullable=False),
        pa.field("accepted", pa.bool_(), nullable=False),
        pa.field("received_at", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
    ]
)
"""Some messages: about where each comes in the output (``time``), and whether its times allow it to be in a batch."""


class PartBounds(msgspec.Struct, frozen=True):
    """Where each of ``parts`` but the first begins, ascending: for batches, and for refused messages.

    A batch belongs to a part by its start and source. Where several bounds are equal, batches of this time and source
    are dealt to as many parts by their ids, which are hashes. A refused message belongs to a part by its receive time,
    source and id. These bounds are quantiles of all messages, because which are duplicates is not known before: a part
    has no more refused messages than its share of all messages, also where they share a receive time.
    """

    parts: int = 1
    batches: tuple[tuple[int, str], ...] = ()
    refused: tuple[tuple[int, str, int], ...] = ()


Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def part_count(rows: int, cores: int) -> int:
    """The number of parts for *rows* messages: a part a core, if *cores* are known, and more where there are many."""
    wanted = min(_MOST_PARTS, max(cores, -(-rows // PART_ROWS)))
    return max(1, min(wanted, rows // _LEAST_ROWS))


def find_bounds(spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook) -> PartBounds:
    """The boundaries of the parts of the output, from a sample of *wanted*.

    Tasks read the sample. If it is no more than one task reads, it is read here, and Spark has no query to plan.
    """
    parts = part_count(wanted.count, spark.sparkContext.defaultParallelism)
    if parts == 1:
        return PartBounds()
    places = parts * PLACES_A_PART
    sample = partial(sample_part, store_url=store_url, wanted=wanted, rules=rules, places=places)
    if places <= _PLACES_A_TASK:
        numbers = pa.record_batch({"id": pa.array(range(places), pa.int64())})
        return bounds_of(pa.Table.from_batches(sample([numbers]), SAMPLE_SCHEMA), parts)
    frame = spark.range(places, numPartitions=-(-places // _PLACES_A_TASK))
    return bounds_of(frame.mapInArrow(sample, spark_schema(SAMPLE_SCHEMA)).toArrow(), parts)


def bounds_of(sample: pa.Table, parts: int) -> PartBounds:
    """The bounds of *parts* at the quantiles of *sample* (:data:`SAMPLE_SCHEMA`)."""
    accepted = sample.filter(sample["accepted"])
    batches = _quantiles(accepted, parts, ["time", "source"])
    return PartBounds(parts, batches, _quantiles(sample, parts, ["received_at", "source", "id"]))


def _quantiles(sample: pa.Table, parts: int, columns: Sequence[str]) -> tuple[Any, ...]:
    """The values of *columns* by which *sample*, sorted by them, is cut into *parts*; none where it is empty."""
    if not len(sample):
        return ()
    ordered = sample.sort_by([(column, "ascending") for column in columns])
    chosen = ordered.take(pa.array(np.arange(1, parts) * len(ordered) // parts))
    return tuple(zip(*(chosen[column].to_pylist() for column in columns), strict=True))


def sample_part(
    numbers: Iterable[pa.RecordBatch], store_url: str, wanted: LogRange, rules: Rulebook, places: int
) -> Iterator[pa.RecordBatch]:
    """Some messages (:data:`SAMPLE_SCHEMA`) at the positions *numbers* (``id``) out of *places* positions."""
    with open_log_store(store_url, clock=SystemClock(), create=False) as store:
        log = store.log(LogSpec(wanted.log), create=False)
        for part in numbers:
            for first, last in sampled_ids(wanted, part.column("id").to_pylist(), places, _PLACE_ROWS):
                read = log.read(first, last, ["id", "event_time", "received_at", "source"], gaps="none")
                tables = [_sampled(one.arrow, rules) for one in read]
                rows = pa.concat_tables(tables).sort_by([("time", "ascending"), ("source", "ascending")])
                some = rows.take(pa.array(np.arange(0, len(rows), max(1, len(rows) // _PLACE_TIMES))))
                yield from some.combine_chunks().to_batches()


def _sampled(messages: pa.RecordBatch, rules: Rulebook) -> pa.Table:
    times, accepted = order_times(messages, rules)
    plain = [messages[name] for name in ("received_at", "source", "id")]
    return pa.table([times, accepted, *plain], SAMPLE_SCHEMA)


def order_times(messages: pa.RecordBatch, rules: Rulebook) -> tuple[Times, Mask]:
    """About where each of *messages* comes in the output, and whether its times allow it to be in a batch.

    One that may be comes at its event time, another one at the time when it was received.
    """
    event, received = (messages.column(name).to_numpy() for name in ("event_time", "received_at"))
    lead = max(config.lead for config in rules.configs)
    accepted: Mask = (event >= received - rules.patience) & (event <= received + lead)
    times: Times = np.where(accepted, event, received)
    return times, accepted


def with_part(rows: Iterable[pa.RecordBatch], bounds: PartBounds) -> Iterator[pa.RecordBatch]:
    """*rows* of ``BATCH_SCHEMA`` as rows of :data:`PARTED_SCHEMA`."""
    for batch in rows:
        part = np.empty(len(batch), np.int32)
        named = batch.column("batch").is_valid().to_numpy(zero_copy_only=False)
        part[named] = _batch_parts(batch.filter(pa.array(named)), bounds)
        part[~named] = _refused_parts(batch.filter(pa.array(~named)), bounds)
        order = np.argsort(part, kind="stable")
        numbers, begins = np.unique(part[order], return_index=True)
        dealt = batch.take(pa.array(order)) if len(numbers) > 1 else batch
        edges = [*begins.tolist(), len(order)]
        shares = [write_share(dealt.slice(begin, end - begin)) for begin, end in itertools.pairwise(edges)]
        yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(shares, pa.binary())], schema=PARTED_SCHEMA)


def _batch_parts(batches: pa.RecordBatch, bounds: PartBounds) -> Times:
    """The part of each of *batches*."""
    parts, upto = _spans(batches, bounds.batches)
    tied = np.flatnonzero(parts < upto)
    names = batches.column("batch").take(pa.array(tied)).to_pylist()
    share = np.array([int(name[:8], 16) for name in names], np.int64)
    parts[tied] += 1 + (share * (upto - parts)[tied] >> 32)
    return parts


def _refused_parts(refused: pa.RecordBatch, bounds: PartBounds) -> Times:
    """The part of each of the *refused* messages."""
    parts, upto = _spans(refused, [(time, source) for time, source, _ in bounds.refused])
    ids, limits = _first_ids(refused.column("ids")), np.array([number for *_, number in bounds.refused], np.int64)
    for begin in np.unique(parts[parts < upto]).tolist():
        rows = np.flatnonzero((parts == begin) & (upto > begin))
        parts[rows] += np.searchsorted(limits[begin : upto[rows[0]]], ids[rows], "right")
    return parts


def _spans(rows: pa.RecordBatch, bounds: Sequence[tuple[int, str]]) -> tuple[Times, Times]:
    """How many *bounds* come before the start and source of each of *rows*, and how many by then."""
    times, starts = np.array([time for time, _ in bounds], np.int64), rows.column("start").to_numpy()
    before, upto = np.searchsorted(times, starts, "left"), np.searchsorted(times, starts, "right")
    tied = np.flatnonzero(before < upto)
    if len(tied):
        sources = rows.column("source").take(pa.array(tied)).dictionary_encode()
        names = sources.dictionary.to_pylist()
        pairs, pair = np.unique(np.stack([starts[tied], sources.indices.to_numpy()]), axis=1, return_inverse=True)
        places = [(start, names[name]) for start, name in pairs.T.tolist()]
        spans = np.array([(bisect_left(bounds, place), bisect_right(bounds, place)) for place in places])
        before[tied], upto[tied] = spans[pair.reshape(-1)].T
    return before, upto


def _first_ids(ids: Any) -> Times:
    """The first of each list of *ids*; -1 where there is none."""
    some = pc.greater(pc.list_value_length(ids), 0)
    first = np.full(len(ids), -1)
    first[np.flatnonzero(some)] = pc.list_element(ids.filter(some), 0).to_numpy()
    return first


def by_part(batches: DataFrame, parts: int) -> DataFrame:
    """*batches* (:data:`PARTED_SCHEMA`) with each of the *parts* in one task, for :func:`order_part`.

    A plain global sort would run the batching twice, to sample where to cut.
    """
    return batches.repartitionById(parts, "part")


def order_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one part (:data:`PARTED_SCHEMA`) in order, as ``BATCH_SCHEMA``.

    Memory holds what decides on their order, and :data:`_HELD_BYTES` of them; more wait in temporary files.
    """
    keys, held, first, size = [_KEYS.empty_table()], list[pa.RecordBatch](), 0, 0
    with contextlib.ExitStack() as files:
        for rows in _read_rows(parts):
            keys.append(_keys(rows))
            held.append(rows)
            size += rows.nbytes
            if size > _HELD_BYTES:
                held[first:] = files.enter_context(_on_disk(held[first:]))
                first, size = len(held), 0
        yield from _sorted(held, pa.concat_tables(keys))


def _read_rows(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for data in part.column("rows"):
            yield from pa.ipc.open_stream(data.as_buffer())


@contextlib.contextmanager
def _on_disk(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """*batches* again, in a temporary file that is mapped into memory."""
    with tempfile.NamedTemporaryFile(prefix="millstream-part-") as file:
        with pa.ipc.new_file(file, BATCH_SCHEMA) as writer:
            for rows in batches:
                writer.write_batch(rows)
        file.flush()
        with pa.memory_map(file.name) as mapped:
            stored = pa.ipc.open_file(mapped)
            yield [stored.get_batch(number) for number in range(stored.num_record_batches)]


def _keys(rows: pa.RecordBatch) -> pa.Table:
    ids, lines = rows.column("ids"), pc.fill_null(pc.binary_length(rows.column("lines")), 0)
    counts = pc.list_value_length(ids).to_numpy()
    size = lines.to_numpy().astype(np.int64) + _ID_BYTES * counts + _ROW_BYTES
    plain = [rows.column(name) for name in ("start", "source", "batch")]
    named = plain[-1].is_valid().cast(pa.int64())
    return pa.table([*plain, named, pa.array(_first_ids(ids)), pa.array(size)], schema=_KEYS)


def _sorted(batches: Sequence[pa.RecordBatch], keys: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows of *batches*, whose *keys* stand in the same order, sorted, a few megabytes at a time."""
    if not len(keys):
        return
    order = pc.sort_indices(keys, _ORDER).to_numpy().astype(np.int64)
    begins = np.cumsum([0, *map(len, batches)])
    filled = np.cumsum(keys["bytes"].to_numpy()[order])
    edges = np.unique(np.searchsorted(filled, np.arange(_PIECE_BYTES, filled[-1], _PIECE_BYTES)))
    for rows in np.split(order, edges):
        ascending = np.sort(rows)
        number = np.searchsorted(begins, ascending, "right") - 1
        taken = [batches[each].take(pa.array(ascending[number == each] - begins[each])) for each in np.unique(number)]
        piece = pa.Table.from_batches(taken).take(pa.array(np.searchsorted(ascending, rows)))
        yield from piece.combine_chunks().to_batches()
