"""Planning tasks of the job ``duplication``: compare the listings of both ends with the records of both.

A task has a span of ids (``rowgroups.py``): it reads both listings and the manifest there, finds the rows of one item
by hashing within the span, in columns, and looks one by one only at what is not surely the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.core.decoding import prepared
from millstream.mill.duplication.differences import ItemDifference, compare
from millstream.mill.manifest import MANIFEST_SCHEMA
from millstream.mill.policies.policy import Pair
from millstream.pipeline.planning.row_groups import RowGroup, ValueRange, cut_spans, deal, read_span, row_groups
from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA
from millstream.pipeline.schema import spark_schema

DIFFERENCE_SCHEMA = pa.schema(
    [
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("replaces", pa.bool_(), nullable=False),
    ]
)
"""One row an item that is not the same at both ends (:class:`millstream.mill.duplication.differences.ComparedItem`)."""

RECORDED_SCHEMA = pa.schema(
    [MANIFEST_SCHEMA.field(name) for name in ("store", "content_id", "sha256", "modified", "deleted")]
)
"""The columns of the manifest that a plan needs."""

LISTED_SCHEMA = pa.schema(
    [INVENTORY_SCHEMA.field(name) for name in ("store", "content_id", "size", "modified", "error")]
)
"""The columns of a listing that a plan needs."""

SPAN_ROWS = 400_000
"""Listed rows of both ends that a task takes: some hundred megabytes with the manifest's and ids of a hundred bytes."""

_LEAST_ROWS = 20_000
_WORK = pa.schema([pa.field("number", pa.int32(), nullable=False), pa.field("work", pa.binary(), nullable=False)])
_ID = "content_id"


class ComparisonTask(msgspec.Struct, frozen=True):
    """A span of ids, and the row groups of the listings and of the manifest that bear on it."""

    span: ValueRange
    listed: tuple[RowGroup, ...]
    recorded: tuple[RowGroup, ...]


def compare_copies(spark: SparkSession, listed: Path, recorded: Path, pair: Pair) -> DataFrame:
    """The differences (:data:`DIFFERENCE_SCHEMA`) between the ends of *pair*, in the order of the ids, part by part.

    *listed* are Parquet files of ``INVENTORY_SCHEMA`` with what both ends list of one space, *recorded* of
    :data:`RECORDED_SCHEMA`; all hosts must reach them.
    """
    work = plan_work(listed, recorded, 2 * spark.sparkContext.defaultParallelism)
    rows = pa.table([list(range(len(work))), [msgspec.msgpack.encode(each) for each in work]], schema=_WORK)
    frame = spark.createDataFrame(rows).repartitionById(len(work), "number")
    return frame.mapInArrow(partial(compare_spans, pair=pair), spark_schema(DIFFERENCE_SCHEMA))


def plan_work(listed: Path, recorded: Path, parts: int) -> list[ComparisonTask]:
    """The spans of all that is *listed*, one after the other: *parts* of them where each is worth a task, or more."""
    listings, manifest = list(row_groups(listed, _ID)), list(row_groups(recorded, _ID))
    total = sum(group.rows for group in listings)
    spans = cut_spans(listings, min(SPAN_ROWS, max(_LEAST_ROWS, total // parts)))
    return [ComparisonTask(*each) for each in zip(spans, deal(listings, spans), deal(manifest, spans), strict=True)]


def compare_spans(parts: Iterable[pa.RecordBatch], pair: Pair) -> Iterator[pa.RecordBatch]:
    """The differences in each :class:`ComparisonTask` of the column ``work``, each in the order of the ids."""
    for data in chain.from_iterable(part.column("work").to_pylist() for part in parts):
        work = msgspec.msgpack.decode(data, type=prepared(ComparisonTask))
        listed = read_span(work.listed, work.span, LISTED_SCHEMA, _ID)
        listed = listed.filter(pc.is_null(listed["error"]))
        recorded = read_span(work.recorded, work.span, RECORDED_SCHEMA, _ID)
        joined = join_ends(
            *(table.filter(pc.equal(table["store"], end)) for table in (listed, recorded) for end in pair_ends(pair))
        )
        differing = joined.filter(pc.invert(is_same(joined))).sort_by(_ID)
        yield from compare_part(differing.to_batches(65_536))


def pair_ends(pair: Pair) -> tuple[str, str]:
    """Source and destination."""
    return pair.source, pair.destination


def join_ends(source: pa.Table, copy: pa.Table, row: pa.Table, copied: pa.Table) -> pa.Table:
    """One row an item that either end lists, with the columns that :func:`compare_part` takes.

    *source* and *copy* are what the ends list, *row* and *copied* what the manifest has of them.
    """
    names = source[_ID]
    if not names.equals(copy[_ID]):
        only = copy[_ID].filter(pc.invert(pc.is_in(copy[_ID], _one(names))))
        names = pa.chunked_array([*names.chunks, *only.chunks], pa.string())
    columns = {_ID: names}
    for prefix, table, wanted in (
        ("", source, ("size", "modified")),
        ("copy_", copy, ("size", "modified")),
        ("row_", row, ("sha256", "modified", "deleted")),
        ("copied_", copied, ("sha256", "modified", "deleted")),
    ):
        columns |= {f"{prefix}{name}": column for name, column in _aligned(table, names, wanted)}
    return pa.table(columns)


def is_same(joined: pa.Table) -> Any:
    """Whether an item is surely the same at both ends, by the columns of :func:`join_ends`.

    It repeats one row of :func:`millstream.mill.duplication.differences.compare`, so that of what is the same, which is
    nearly all, no object is made.
    """
    unchanged = pc.or_kleene(pc.is_null(joined["modified"]), pc.less_equal(joined["modified"], joined["row_modified"]))
    alike = [pc.equal(joined["size"], joined["copy_size"]), pc.equal(joined["row_sha256"], joined["copied_sha256"])]
    live = [pc.invert(joined["row_deleted"]), pc.invert(joined["copied_deleted"])]
    same = unchanged
    for condition in (*alike, *live):
        same = pc.and_kleene(same, condition)
    return pc.fill_null(same, False)


class _ListedState(NamedTuple):
    size: int
    modified: int | None


class _RecordedState(NamedTuple):
    sha256: str | None
    modified: int
    deleted: bool


def compare_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The differences (:data:`DIFFERENCE_SCHEMA`) of joined listings and manifest rows; what is the same is left out.

    Columns: ``content_id``; ``size`` and ``modified`` of the source and, with ``copy_``, of the destination; ``row_…``
    and ``copied_…`` for ``sha256``, ``modified`` and ``deleted`` of the manifest at both. A null ``size`` means no
    item, a null ``deleted`` no row.
    """
    for part in parts:
        columns = {name: part.column(name).to_pylist() for name in part.schema.names}
        found = []
        for values in zip(*(columns[name] for name in _JOINED), strict=True):
            name, size, modified, copy_size, copy_modified, *recorded = values
            kind, replaces = compare(
                _ListedState(size, modified) if size is not None else None,
                _ListedState(copy_size, copy_modified) if copy_size is not None else None,
                _RecordedState(*recorded[:3]) if recorded[2] is not None else None,
                _RecordedState(*recorded[3:]) if recorded[5] is not None else None,
            )
            if kind != ItemDifference.SAME:
                found.append((name, kind.value, size or 0, replaces))
        if found:
            named = zip(zip(*found, strict=True), DIFFERENCE_SCHEMA, strict=True)
            arrays = [pa.array(column, field.type) for column, field in named]
            yield pa.RecordBatch.from_arrays(arrays, schema=DIFFERENCE_SCHEMA)


_JOINED = (
    "content_id", "size", "modified", "copy_size", "copy_modified", "row_sha256", "row_modified", "row_deleted",
    "copied_sha256", "copied_modified", "copied_deleted",
)  # fmt: skip


def _aligned(table: pa.Table, names: Any, wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The columns *wanted* of *table* in the order of *names*, null where it has no row of that name."""
    rows: Mapping[str, Any] = {name: table[name] for name in wanted}
    if not names.equals(table[_ID]):  # ends that are alike, and a manifest that knows them, have the same order
        places = pc.index_in(names, _one(table[_ID]))
        rows = {name: column.take(places) for name, column in rows.items()}
    yield from rows.items()


def _one(column: Any) -> Any:
    return column.combine_chunks()
