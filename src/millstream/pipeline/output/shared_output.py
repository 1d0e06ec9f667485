"""The output of tasks where the driver reads it too: in a folder proved to be the same, or at a URL; and counted.

On a cluster whose hosts have separate disks, a task writes to a folder of its host, and the driver would take the part
on its own host for the complete output.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.decoding import prepared
from millstream.core.durable import replacing
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.reachable import ask_hosts, on_this_host
from millstream.pipeline.result_parts import (
    PART_SCHEMA,
    FolderTable,
    ParquetLayout,
    ResultPart,
    StoredTable,
    TaskWork,
    begin_table,
    commit_table,
    discard_tables,
    locations,
    part_name,
    results_url,
    shown_place,
    write_part,
)
from millstream.pipeline.schema import open_parquet, spark_schema
from millstream.pipeline.task_rates import task_url

_PROBED = pa.schema([pa.field("host", pa.string()), pa.field("shared", pa.bool_())])
_FOOTERS_AT_ONCE = 16


def require_shared(spark: SparkSession, folder: Path) -> None:
    """Raise :class:`PipelineInputError` where a host of *spark* has another *folder* than the driver, where it exists.

    A task on every core of the cluster looks for a file of the driver and writes one for it.
    """
    if on_this_host(spark):
        return
    probe = folder / f".probe-{secrets.token_hex(8)}"
    probe.write_bytes(b"")
    try:
        rows = ask_hosts(spark, partial(probe_part, probe=probe), _PROBED)
        apart = {row["host"] for row in rows if not (row["shared"] and _written(probe, row["host"]).exists())}
    finally:
        for path in folder.glob(f"{probe.name}*"):
            path.unlink(missing_ok=True)
    if apart:
        raise PipelineInputError(
            f"the folder {folder} of this host is not shared with {', '.join(sorted(apart))}: set pipeline.results "
            "(--results) to s3://… or to a folder that all hosts mount at the same path, or run with --master local[*]"
        )


def probe_part(parts: Iterable[pa.RecordBatch], probe: Path) -> Iterator[pa.RecordBatch]:
    """Whether the file *probe* is seen here; if so, another one is left beside it for the driver."""
    for _ in parts:
        host = socket.gethostname()
        shared = probe.exists()
        if shared:
            _written(probe, host).write_bytes(b"")
        yield pa.RecordBatch.from_pylist([{"host": host, "shared": shared}], _PROBED)


def write_output(frame: DataFrame, folder: Path, layout: ParquetLayout | None = None) -> int:
    """Write *frame* as Parquet into *folder*, which must not exist, or to the URL for the results of its session.

    Then *folder* names the parts. Returns the number of rows. Raises :class:`PipelineInputError` where executors do not
    share the folder above, and :class:`PipelineError` where other rows are found than tasks have written.
    """
    spark, layout, written = frame.sparkSession, layout or ParquetLayout(), Observation()
    if results_url(spark):
        return write_made(frame, folder, layout, TaskWork())["rows"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    require_shared(spark, folder.parent)
    counted = frame.observe(written, F.count(F.lit(1)).alias("rows"))
    counted.write.options(**layout.spark_options).parquet(str(folder))
    rows = int(written.get.get("rows", 0))
    require_rows(shown_place(folder), rows, sum(rows_in(locations(folder))))
    return rows


def write_made(frame: DataFrame, folder: Path, layout: ParquetLayout, work: TaskWork) -> Counter[str]:
    """Write what *work* makes of the rows of each task of *frame*, as :func:`write_output` does; returns its figures.

    Among these are ``rows``. Tasks write Parquet by themselves: rows do not go back to Java.
    """
    spark = frame.sparkSession
    if url := results_url(spark):
        table = begin_table(folder, url)
        stored = _store_parts(frame, table.at(task_url(spark, url)), layout, work)
        commit_table(folder, table, map(_part, stored))
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_shared(spark, folder.parent)
        plain = FolderTable(str(folder)).begin()
        stored = _store_parts(frame, plain, layout, work)
        plain.commit(map(_part, stored))
    figures = Counter[str]()
    for row in stored:
        figures.update(msgspec.json.decode(row["figures"], type=prepared(dict[str, int])))
    require_rows(shown_place(folder), figures["rows"], sum(rows_in(locations(folder))))
    return figures


def _store_parts(
    frame: DataFrame, table: StoredTable | FolderTable, layout: ParquetLayout, work: TaskWork
) -> list[Row]:
    """The rows (``PART_SCHEMA``) of the attempts of tasks that Spark took."""
    write = partial(write_part, table=table, layout=layout, work=work)
    rows: list[Row] = frame.mapInArrow(write, spark_schema(PART_SCHEMA)).collect()
    return rows


def _part(row: Row) -> ResultPart:
    return ResultPart(row["name"], row["bytes"])


@contextlib.contextmanager
def driver_file(spark: SparkSession, path: Path) -> Iterator[BinaryIO]:
    """The Parquet file *path*, which the driver writes for tasks to read (:func:`read_parquet`), as a whole.

    Where the results of *spark* go to a URL, so does this one, and *path* is a folder that names it.
    """
    discard_tables(path)
    if path.is_dir():
        shutil.rmtree(path)
    if not (url := results_url(spark)):
        with replacing(path) as file:
            yield file
        return
    path.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as temporary:
        yield temporary
        table = begin_table(path, url)
        commit_table(path, table, [table.put(part_name("part-00000", 0), temporary)])


def require_rows(place: Path | str, written: int, found: int) -> None:
    """Raise :class:`PipelineError` unless the number of rows *found* in *place* equals the number *written* there."""
    if written != found:
        raise PipelineError(
            f"tasks wrote {written:,} rows into {place}, but {found:,} were found: executors on other "
            "hosts wrote to their own disks. Set pipeline.results (--results) to s3://… or to a folder "
            "that all hosts mount at the same path, and run the job again"
        )


def _written(probe: Path, host: str) -> Path:
    return probe.with_name(f"{probe.name}-{host}")


def rows_in(places: Sequence[str]) -> list[int]:
    """The rows of each of the Parquet files at *places*; several at once, since at a URL a footer is a request."""
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "millstream-footers") as pool:
        return list(pool.map(rows_at, places))


def rows_at(location: str) -> int:
    """The rows of the Parquet file at *location*."""
    with open_parquet(location) as file:
        rows: int = file.metadata.num_rows
    return rows
