"""The output of tasks in a folder that the driver reads too: proved to be the same folder, and counted.

On a cluster whose hosts have disks of their own, a task writes to a folder of its host, and the driver would take the
part that lies on its own host for the whole.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.schema import spark_schema

_PROBED = pa.schema([pa.field("host", pa.string()), pa.field("shared", pa.bool_())])
_PROBES_A_CORE = 4


def require_shared(spark: SparkSession, folder: Path) -> None:
    """Raise :class:`PipelineInputError` where a host of *spark* has another *folder* than the driver, where it exists.

    A task on every core of the cluster looks for a file of the driver and writes one for it.
    """
    context = spark.sparkContext
    if context.master.startswith("local"):
        return
    probe = folder / f".probe-{secrets.token_hex(8)}"
    probe.write_bytes(b"")
    tasks = _PROBES_A_CORE * context.defaultParallelism
    try:
        rows = spark.range(tasks, numPartitions=tasks).mapInArrow(
            partial(probe_part, probe=probe), spark_schema(_PROBED)
        )
        apart = {row["host"] for row in rows.collect() if not (row["shared"] and _written(probe, row["host"]).exists())}
    finally:
        for path in folder.glob(f"{probe.name}*"):
            path.unlink(missing_ok=True)
    if apart:
        raise PipelineInputError(
            f"executors on {', '.join(sorted(apart))} have another folder at {folder} than this host: put the node's "
            "data folder (--data) on a file system that all hosts mount at the same path, or run with --master local[*]"
        )


def probe_part(parts: Iterable[pa.RecordBatch], probe: Path) -> Iterator[pa.RecordBatch]:
    """Whether the file *probe* is seen here; if so, another one is left beside it for the driver."""
    for _ in parts:
        host = socket.gethostname()
        shared = probe.exists()
        if shared:
            _written(probe, host).write_bytes(b"")
        yield pa.RecordBatch.from_pylist([{"host": host, "shared": shared}], _PROBED)


def write_output(frame: DataFrame, folder: Path, options: Mapping[str, str] | None = None) -> int:
    """Write *frame* as Parquet into *folder*, which must not exist; returns the number of rows.

    Raises :class:`PipelineInputError` where executors do not share the folder above, and :class:`PipelineError` where
    other rows are found in the files than tasks have written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    require_shared(frame.sparkSession, folder.parent)
    written = Observation()
    frame.observe(written, F.count(F.lit(1)).alias("rows")).write.options(**(options or {})).parquet(str(folder))
    rows = int(written.get.get("rows", 0))
    require_rows(folder, rows, sum(_rows(path) for path in folder.glob("*.parquet")))
    return rows


def require_rows(place: Path, written: int, found: int) -> None:
    """Raise :class:`PipelineError` unless the rows *found* in *place* are as many as were *written* there."""
    if written != found:
        raise PipelineError(
            f"tasks wrote {written:,} rows into {place}, and {found:,} are found there: executors on other hosts write "
            "to a disk of their own. Put the node's data folder (--data) on a file system that all hosts mount at the "
            "same path, and run the job again"
        )


def _written(probe: Path, host: str) -> Path:
    return probe.with_name(f"{probe.name}-{host}")


def _rows(path: Path) -> int:
    rows: int = pq.read_metadata(path).num_rows
    return rows
