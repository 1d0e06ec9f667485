"""The job ``inventory``: what is listed in the spaces of storage providers, as a Parquet snapshot.

Spaces are listed in ranges side by side, and each range is a file: a run that was killed continues with the ranges that
are left. What has changed since an earlier listing is in ``jobs/changes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession

from millstream.core.clock import Clock, SystemClock
from millstream.core.durable import replacing
from millstream.mill.configured_stores import is_system
from millstream.mill.mount_check import unmounted
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, parquet_rows
from millstream.pipeline.planning.binned_work import (
    SUMMARY_SCHEMA,
    BinTarget,
    bins_done,
    fill_bin,
    finish_bins,
    open_bins,
)
from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA, ContentIdRange, cut_space, entries_within
from millstream.pipeline.schema import open_parquet, spark_schema
from millstream.pipeline.task_rates import task_url
from millstream.stores import open_provider
from millstream.stores.protocol import Entry, Store, StoreError
from millstream.stores.provider_schemes import provider_scheme

PLACE_SCHEMA = pa.schema(
    [
        pa.field("bin", pa.int32(), nullable=False),
        *(pa.field(name, pa.string()) for name in ("store", "url", "space", "error", "after", "until")),
    ]
)
"""One row per space or range of one (:class:`~millstream.pipeline.planning.space_listing.ContentIdRange`), from 0;
with ``error`` (and an empty ``space``) a store that did not say what spaces it has."""

RANGES = 64
"""The most ranges that a space is listed in, side by side. Local folders are listed in one: there it saves nothing."""

_ROWS = 10_000
_CHUNK = 1000


class Unlisted(msgspec.Struct, frozen=True):
    """A listing that broke off, and why; ``space`` is empty where the store did not say what spaces it has."""

    store: str
    space: str
    error: str


_UNLISTED = list(Unlisted.__struct_fields__)


class Inventory(msgspec.Struct, frozen=True):
    """A finished inventory: its record and the folder of its Parquet files."""

    record: JobRecord
    data: Path
    reused: bool

    def unlisted(self) -> tuple[Unlisted, ...]:
        """The listings that broke off."""
        found = [row for part in parquet_rows(self.data, _UNLISTED) for row in part.to_pylist() if row["error"]]
        return tuple(sorted((Unlisted(**row) for row in found), key=lambda one: (one.store, one.space)))


def run_inventory(
    spark: SparkSession,
    jobs: Path,
    snapshot: str,
    stores: Mapping[str, str],
    *,
    spaces: Sequence[str] | None = None,
    clock: Clock | None = None,
    has_items: Callable[[str], bool] = lambda _: False,
    complete: bool = False,
) -> Inventory:
    """List *spaces* (None: every space that a store has) of *stores* (id → URL) into a folder under *jobs*.

    *snapshot* names the listing; one of that name that was finished before is not made again, unless *complete* asks
    for one in which no listing broke off. A store that cannot be listed is told by :meth:`Inventory.unlisted` and does
    not stop the others; so is one without spaces that should have items, as *has_items* says of its id: it is not
    mounted. Raises :class:`JobBusyError`, and :class:`PipelineInputError` where there is no store.
    """
    clock = clock or SystemClock()
    if not stores:
        raise PipelineInputError("no store to list: name at least one store")
    named = None if spaces is None else sorted(spaces)
    folder = JobFolder(jobs, "inventory", {"snapshot": snapshot, "stores": dict(stores), "spaces": named})
    with folder.held():
        record = folder.committed()
        if record is not None and not (complete and record.counts.get("unlisted")):
            return Inventory(record, folder.data, reused=True)
        began = clock.monotonic()
        places = _begun(folder) or _begin(folder, find_places(stores, named, has_items))
        list_places(spark, places, folder.data)
        record = _count(folder, len({(place["store"], place["space"]) for place in places.to_pylist()}))
        seconds = round(clock.monotonic() - began, 3)
        return Inventory(folder.commit(msgspec.structs.replace(record, seconds=seconds)), folder.data, reused=False)


def find_places(
    stores: Mapping[str, str], spaces: Sequence[str] | None, has_items: Callable[[str], bool] = lambda _: False
) -> pa.Table:
    """Every range to list, rows of :data:`PLACE_SCHEMA`: of the spaces named, or all but the system's own (``x-…``)."""
    rows: list[dict[str, Any]] = []
    for store, url in sorted(stores.items()):
        place = {"store": store, "url": url, "space": "", "error": None, "after": "", "until": None}
        try:
            provider = open_provider(url)
            found = provider.spaces()
            if not found and has_items(store):
                raise unmounted(store, url)
            wanted = [space for space in found if (not is_system(space) if spaces is None else space in spaces)]
            rows += [place | {"space": space} | cut for space in wanted for cut in _ranges(provider, space)]
        except (StoreError, OSError) as error:
            rows.append(place | {"error": str(error)})
    return pa.Table.from_pylist([{"bin": number, **row} for number, row in enumerate(rows)], PLACE_SCHEMA)


def _ranges(provider: Store, space: str) -> list[dict[str, Any]]:
    wanted = RANGES if provider_scheme(provider.url).is_remote else 1
    return [msgspec.structs.asdict(each) for each in cut_space(provider, space, wanted)]


def _places(folder: JobFolder) -> Path:
    return folder.path / "places.parquet"


def _begun(folder: JobFolder) -> pa.Table | None:
    """The ranges that a run which was killed has begun to list: they must stay what they were."""
    finished_and_damaged = (folder.path / "job.json").exists()
    if finished_and_damaged or not (_places(folder).exists() and folder.data.is_dir()):
        return None
    with open_parquet(_places(folder)) as parquet:
        return parquet.read().cast(PLACE_SCHEMA)


def _begin(folder: JobFolder, places: pa.Table) -> pa.Table:
    """Write down that *places* are to be listed."""
    _places(folder).unlink(missing_ok=True)
    folder.begin()
    folder.data.mkdir()
    with replacing(_places(folder)) as file:
        pq.write_table(places, file)
    return places


def list_places(spark: SparkSession, places: pa.Table, data: Path) -> None:
    """List *places* into *data*, a file of :data:`INVENTORY_SCHEMA` each, but for those that are there; a task each."""
    target = open_bins(spark, data)
    done = bins_done(spark, data, places.num_rows)
    places = places.filter(pc.invert(pc.is_in(places["bin"], pa.array(done, pa.int32()))))
    finish_bins(data, _list(spark, places, target) if places.num_rows else [])


def _list(spark: SparkSession, places: pa.Table, target: BinTarget) -> Sequence[Row]:
    own = {url: task_url(spark, url) for url in places.column("url").unique().to_pylist()}
    urls = pa.array([own[url] for url in places.column("url").to_pylist()], pa.string())
    places = places.set_column(places.schema.get_field_index("url"), "url", urls)
    frame = spark.createDataFrame(places).repartitionById(1 + max(places["bin"].to_pylist()), "bin")
    listing = partial(list_part, data=target)
    finished: list[Row] = frame.mapInArrow(listing, spark_schema(SUMMARY_SCHEMA)).collect()
    return finished


def list_part(parts: Iterable[pa.RecordBatch], data: BinTarget) -> Iterator[pa.RecordBatch]:
    """List the place in *parts* into its file, ten thousand entries at a time."""
    yield from fill_bin(parts, lambda: _list_places, INVENTORY_SCHEMA, data, size="size")


def _list_places(part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for place in part.drop_columns(["bin"]).to_pylist():
        yield from _list_place(**place)


def _list_place(
    *, store: str, url: str, space: str, error: str | None, after: str, until: str | None
) -> Iterator[pa.RecordBatch]:
    if error is None:
        try:
            entries = entries_within(open_provider(url), space, ContentIdRange(after, until), chunk=_CHUNK)
            while chunk := list(islice(entries, _ROWS)):
                yield _to_arrow(store, space, chunk)
        except (StoreError, OSError) as broken:
            error = str(broken)
    if error is not None:
        row = {"store": store, "space": space, "content_id": "", "size": 0, "modified": None, "error": error}
        yield pa.RecordBatch.from_pylist([row], INVENTORY_SCHEMA)


def _to_arrow(store: str, space: str, entries: Sequence[Entry]) -> pa.RecordBatch:
    columns = [
        pa.array([store] * len(entries), pa.string()),
        pa.array([space] * len(entries), pa.string()),
        pa.array([entry.content_id for entry in entries], pa.string()),
        pa.array([entry.size for entry in entries], pa.int64()),
        pa.array([entry.modified for entry in entries], pa.int64()),
        pa.nulls(len(entries), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INVENTORY_SCHEMA)


def _count(folder: JobFolder, places: int) -> JobRecord:
    rows = broken = size = 0
    for part in parquet_rows(folder.data, ["size", "error"]):
        broken += part.num_rows - part.column("error").null_count
        rows += part.column("error").null_count
        size += pc.sum(part.column("size")).as_py() or 0
    return folder.record(rows_in=places, rows_out=rows, bytes=size, counts={"unlisted": broken})
