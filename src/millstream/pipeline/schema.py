"""Tables that are laid down once, as Arrow schemas, and read and written by Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millstream.pipeline.errors import PipelineError

_GLOB_PATHS = "__globPaths__"
"""Spark's own option (``DataSource.GLOB_PATHS_KEY``) to take ``[``, ``{`` and ``*`` in a path for what they are."""


def spark_schema(schema: pa.Schema) -> StructType:
    """*schema* for Spark: the same names, types and nullability (of the columns, not inside them)."""
    return from_arrow_schema(schema)


def read_parquet(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    """The Parquet file or folder at *path*, whose columns are those of *schema*: nothing is guessed from the files."""
    reader = spark.read.schema(spark_schema(schema)).option(_GLOB_PATHS, "false")
    return reader.parquet(str(path))


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """The Parquet file *path* of a job, of which each page is checked as it is read.

    Raises :class:`PipelineError`, which says what to do, where it is not what was written.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{path} cannot be read ({error}): remove it and run the job again") from error
