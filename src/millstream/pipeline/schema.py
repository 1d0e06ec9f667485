"""Tables that are laid down once, as Arrow schemas, and read and written by Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

_GLOB_PATHS = "__globPaths__"
"""Spark's own option (``DataSource.GLOB_PATHS_KEY``) to take ``[``, ``{`` and ``*`` in a path for what they are."""


def spark_schema(schema: pa.Schema) -> StructType:
    """*schema* for Spark: the same names, types and nullability (of the columns, not inside them)."""
    return from_arrow_schema(schema)


def read_parquet(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    """The Parquet file or folder at *path*, whose columns are those of *schema*: nothing is guessed from the files."""
    reader = spark.read.schema(spark_schema(schema)).option(_GLOB_PATHS, "false")
    return reader.parquet(str(path))
