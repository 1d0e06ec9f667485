"""Tables that are laid down once, as Arrow schemas, and read and written by Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millstream.pipeline.errors import PipelineError
from millstream.pipeline.result_parts import open_location, read_table, task_location
from millstream.stores.protocol import ItemNotFoundError

_GLOB_PATHS = "__globPaths__"
"""Spark's own option (``DataSource.GLOB_PATHS_KEY``) to take ``[``, ``{`` and ``*`` in a path for what they are."""


def spark_schema(schema: pa.Schema) -> StructType:
    """*schema* for Spark: the same names, types and nullability (of the columns, not inside them)."""
    return from_arrow_schema(schema)


def read_parquet(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    """The Parquet file or folder at *path*, whose columns are those of *schema*: nothing is guessed from the files.

    A folder may be that of a result whose parts are objects (``pipeline/result_parts.py``): tasks read those.
    """
    if (table := read_table(path)) is not None:
        return _read_parts(spark, [table.location(part.name) for part in table.parts], schema)
    reader = spark.read.schema(spark_schema(schema)).option(_GLOB_PATHS, "false")
    return reader.parquet(str(path))


def _read_parts(spark: SparkSession, locations: list[str], schema: pa.Schema) -> DataFrame:
    """The rows of the objects at *locations*, a task each."""
    if not locations:
        return spark.createDataFrame([], spark_schema(schema))
    tasks = spark.sparkContext.defaultParallelism
    places = pa.table(
        {
            "number": pa.array(range(len(locations)), pa.int32()),
            "location": [task_location(location, tasks) for location in locations],
        }
    )
    frame = spark.createDataFrame(places).repartitionById(len(locations), "number")
    return frame.mapInArrow(partial(read_parts, schema=schema), spark_schema(schema))


def read_parts(parts: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the files at the locations in *parts*, with the columns of *schema*; a row group is in memory."""
    for part in parts:
        for location in part.column("location").to_pylist():
            with open_parquet(location) as parquet:
                for group in range(parquet.num_row_groups):
                    rows = parquet.read_row_group(group, columns=schema.names, use_threads=False)
                    yield from rows.select(schema.names).cast(schema).to_batches()


@contextlib.contextmanager
def open_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    """The Parquet file *path* of a job, of which each page is checked as it is read; it may be at an object's location.

    Raises :class:`PipelineError`, which says what to do, where it is not what was written.
    """
    try:
        with open_location(str(path)) as file, pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            yield parquet
    except (FileNotFoundError, ItemNotFoundError) as error:
        raise PipelineError(f"{path} is missing: run the job again") from error
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow reports damage as one without a number, too
            raise PipelineError(f"cannot read {path} ({error}): fix the cause, and run the job again") from error
        raise PipelineError(f"{path} is damaged ({error}): remove the file, and run the job again") from error
