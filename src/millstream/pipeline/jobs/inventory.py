"""The job ``inventory``: what is listed in the spaces of storage providers, as a Parquet snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.folder import JobFolder, JobRecord, parquet_rows
from millstream.pipeline.schema import spark_schema
from millstream.stores import open_provider
from millstream.stores.protocol import Entry, all_entries

INVENTORY_SCHEMA = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", pa.int64()),
    ]
)
"""One row a listed content item. ``store`` is the configured id; ``size`` in bytes, ``modified`` in microseconds since
the epoch, UTC, null where the provider has none."""


_ROWS = 10_000
_CHUNK = 1000


class Inventory(msgspec.Struct, frozen=True):
    """A finished inventory: its record and the folder of its Parquet files."""

    record: JobRecord
    data: Path
    reused: bool


def run_inventory(
    spark: SparkSession,
    jobs: Path,
    snapshot: str,
    stores: Mapping[str, str],
    *,
    spaces: Sequence[str] | None = None,
    clock: Clock | None = None,
) -> Inventory:
    """List *spaces* (None: every space that a store has) of *stores* (id → URL) into a folder under *jobs*.

    *snapshot* names the listing; one of that name that was finished before is not made again. Raises
    :class:`JobBusyError`, :class:`PipelineInputError` where there is no store, and the errors of the stores.
    """
    clock = clock or SystemClock()
    if not stores:
        raise PipelineInputError("there is no store to list: name at least one")
    named = None if spaces is None else sorted(spaces)
    folder = JobFolder(jobs, "inventory", {"snapshot": snapshot, "stores": dict(stores), "spaces": named})
    with folder.held():
        if record := folder.committed():
            return Inventory(record, folder.data, reused=True)
        folder.clean()
        began = clock.monotonic()
        places = find_places(stores, named)
        list_places(spark, places).write.parquet(str(folder.data))
        sizes = pa.chunked_array((part.column("size") for part in parquet_rows(folder.data, ["size"])), pa.int64())
        seconds = round(clock.monotonic() - began, 3)
        size = pc.sum(sizes).as_py() or 0
        record = JobRecord("inventory", folder.inputs, places.num_rows, len(sizes), size, seconds)
        return Inventory(folder.commit(record), folder.data, reused=False)


def find_places(stores: Mapping[str, str], spaces: Sequence[str] | None) -> pa.Table:
    """Every (store, url, space) to list: the spaces there are, of those named where some are."""
    rows = [
        {"store": store, "url": url, "space": space}
        for store, url in sorted(stores.items())
        for space in open_provider(url).spaces()
        if spaces is None or space in spaces
    ]
    schema = pa.schema([pa.field(name, pa.string()) for name in ("store", "url", "space")])
    return pa.Table.from_pylist(rows, schema)


def list_places(spark: SparkSession, places: pa.Table) -> DataFrame:
    """The listings of *places*, rows of :data:`INVENTORY_SCHEMA`; each place is one part."""
    parts = max(1, places.num_rows)
    frame = spark.createDataFrame(places).repartition(parts, "store", "space")
    return frame.mapInArrow(list_part, spark_schema(INVENTORY_SCHEMA)).select(*INVENTORY_SCHEMA.names)


def list_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The listings of the places in *parts*, ten thousand entries at a time."""
    for part in parts:
        for place in part.to_pylist():
            entries = all_entries(open_provider(place["url"]), place["space"], chunk=_CHUNK)
            while chunk := list(islice(entries, _ROWS)):
                yield _to_arrow(place["store"], place["space"], chunk)


def _to_arrow(store: str, space: str, entries: Sequence[Entry]) -> pa.RecordBatch:
    columns = [
        pa.array([store] * len(entries), pa.string()),
        pa.array([space] * len(entries), pa.string()),
        pa.array([entry.content_id for entry in entries], pa.string()),
        pa.array([entry.size for entry in entries], pa.int64()),
        pa.array([entry.modified for entry in entries], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INVENTORY_SCHEMA)
