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
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.batching import Rulebook
from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.pipeline.jobs.log_range import LogRange, sampled_ids
from millstream.pipeline.jobs.shard_task import BATCH_SCHEMA
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_shares import write_share
from millstream.stores.tiers import open_log_store

PART_ROWS = 250_000
"""About how many messages a part of a large log holds."""

_LEAST_ROWS = 5_000
"""A part of fewer is not worth a task of its own."""

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
"""What decides on the order of rows (``named``: 0 for those that are no batch), and about how many bytes each has."""

_ROW_BYTES, _ID_BYTES = 250, 8
"""About what a row has without its lines and ids."""

_PIECE_BYTES = 8 << 20
_HELD_BYTES = 64 << 20

SAMPLE_SCHEMA = pa.schema(
    [pa.field("time", pa.int64(), nullable=False), pa.field("source", pa.string(), nullable=False)]
)
"""About where some messages come in the output: by time and, where that is the same, by source."""

_SAMPLE_ORDER = [("time", "ascending"), ("source", "ascending")]

Bound: TypeAlias = tuple[int, str]
"""The time and the source at which a part begins. One that comes several times is worth as many parts: batches of this
time and source are dealt to these by their ids, which are hashes."""

Times = npt.NDArray[np.int64]


def part_count(rows: int, cores: int) -> int:
    """The number of parts for *rows* messages: a part a core, if *cores* are known, and more where there are many."""
    wanted = min(_MOST_PARTS, max(cores, -(-rows // PART_ROWS)))
    return max(1, min(wanted, rows // _LEAST_ROWS))


def find_bounds(spark: SparkSession, store_url: str, wanted: LogRange, rules: Rulebook) -> list[Bound]:
    """Where each part but the first begins, ascending; tasks read a sample of *wanted* for it."""
    parts = part_count(wanted.count, spark.sparkContext.defaultParallelism)
    if parts == 1:
        return []
    places = parts * PLACES_A_PART
    sample = partial(sample_part, store_url=store_url, wanted=wanted, rules=rules, places=places)
    numbers = spark.range(places, numPartitions=-(-places // _PLACES_A_TASK))
    found = numbers.mapInArrow(sample, spark_schema(SAMPLE_SCHEMA)).toArrow().sort_by(_SAMPLE_ORDER)
    chosen = found.take(pa.array(np.arange(1, parts) * len(found) // parts))
    return list(zip(chosen["time"].to_pylist(), chosen["source"].to_pylist(), strict=True))


def sample_part(
    numbers: Iterable[pa.RecordBatch], store_url: str, wanted: LogRange, rules: Rulebook, places: int
) -> Iterator[pa.RecordBatch]:
    """Some messages (:data:`SAMPLE_SCHEMA`) at the places *numbers* (``id``) of as many as *places*."""
    with open_log_store(store_url, clock=SystemClock()) as store:
        log = store.log(LogSpec(wanted.log), create=False)
        for part in numbers:
            for first, last in sampled_ids(wanted, part.column("id").to_pylist(), places, _PLACE_ROWS):
                read = log.read(first, last, ["event_time", "received_at", "source"], gaps="none")
                tables = [pa.table([order_times(one.arrow, rules), one.arrow["source"]], SAMPLE_SCHEMA) for one in read]
                rows = pa.concat_tables(tables).sort_by(_SAMPLE_ORDER)
                some = rows.take(pa.array(np.arange(0, len(rows), max(1, len(rows) // _PLACE_TIMES))))
                yield from some.combine_chunks().to_batches()


def order_times(messages: pa.RecordBatch, rules: Rulebook) -> Times:
    """About where each of *messages* comes in the output: at its event time, or where refused when it was received."""
    event, received = (messages.column(name).to_numpy() for name in ("event_time", "received_at"))
    lead = max(config.lead for config in rules.configs)
    accepted = (event >= received - rules.patience) & (event <= received + lead)
    times: Times = np.where(accepted, event, received)
    return times


def with_part(rows: Iterable[pa.RecordBatch], bounds: Sequence[Bound]) -> Iterator[pa.RecordBatch]:
    """*rows* of ``BATCH_SCHEMA`` as rows of :data:`PARTED_SCHEMA`."""
    times = np.array([time for time, _ in bounds], np.int64)
    for batch in rows:
        starts = batch.column("start").to_numpy()
        part = np.searchsorted(times, starts, "right").astype(np.int32)
        tied = np.flatnonzero(np.searchsorted(times, starts, "left") < part)
        if len(tied):
            rows_there = batch.select(["start", "source", "batch"]).take(pa.array(tied)).to_pylist()
            part[tied] = [_part_of(bounds, row["start"], row["source"], row["batch"]) for row in rows_there]
        order = np.argsort(part, kind="stable")
        numbers, begins = np.unique(part[order], return_index=True)
        dealt = batch.take(pa.array(order)) if len(numbers) > 1 else batch
        edges = [*begins.tolist(), len(order)]
        shares = [write_share(dealt.slice(begin, end - begin)) for begin, end in itertools.pairwise(edges)]
        yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(shares, pa.binary())], schema=PARTED_SCHEMA)


def _part_of(bounds: Sequence[Bound], start: int, source: str, batch: str | None) -> int:
    """The part of a row that begins at the time of a bound; a row that is no batch comes before those that are."""
    before, upto = bisect_left(bounds, (start, source)), bisect_right(bounds, (start, source))
    if before == upto:
        return upto
    share = int(batch[:8], 16) if batch else 0
    return before + 1 + (share * (upto - before) >> 32)


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
    counts = pc.list_value_length(ids)
    some = pc.greater(counts, 0)
    first = np.full(len(rows), -1)
    first[np.flatnonzero(some)] = pc.list_element(ids.filter(some), 0).to_numpy()
    size = lines.to_numpy().astype(np.int64) + _ID_BYTES * counts.to_numpy() + _ROW_BYTES
    plain = [rows.column(name) for name in ("start", "source", "batch")]
    named = plain[-1].is_valid().cast(pa.int64())
    return pa.table([*plain, named, pa.array(first), pa.array(size)], schema=_KEYS)


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
