"""The data source ``millstream``: a log as a Spark DataFrame.

Partitions are runs of whole blocks, balanced by bytes; executors open the log store themselves and hand record
batches on as they lie in the blocks, with no Python object a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.core.clock import SystemClock
from millstream.core.message import MESSAGE_SCHEMA
from millstream.log import LogSpec, open_store
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.schema import spark_schema

NAME = "millstream"
"""The name in ``spark.read.format(…)``."""

PARTITION_BYTES = 4_000_000
"""Block bytes a partition aims at: a second of work or so, and enough parts to share out."""

MOST_PARTITIONS = 10_000

SPARK_SCHEMA = spark_schema(MESSAGE_SCHEMA)
"""The message in Spark: the same columns as :data:`millstream.core.message.MESSAGE_SCHEMA`."""


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("millstream")`` known to *spark*."""
    spark.dataSource.register(LogDataSource)


def read_log(
    spark: SparkSession,
    store_url: str,
    log: str,
    *,
    first_id: int | None = None,
    last_id: int | None = None,
    columns: Sequence[str] | None = None,
    partition_bytes: int = PARTITION_BYTES,
) -> DataFrame:
    """The messages of *log* from *first_id* to *last_id* (None: the first and the last it has), as a DataFrame.

    *columns* are the only ones decoded, in this order; *partition_bytes* are the block bytes a partition aims at.
    Raises :class:`PipelineInputError` for a store in local files on a cluster: its executors could not open them.
    """
    if store_url.startswith(("sqlite:", "segments:")) and not spark.sparkContext.master.startswith("local"):
        raise PipelineInputError(
            f"the log store {store_url} lies on this host, and Spark runs on {spark.sparkContext.master}: "
            "use master local[*], or a log store that all hosts reach"
        )
    reader = spark.read.format(NAME).option("store", store_url).option("log", log)
    if first_id is not None:
        reader = reader.option("from", str(first_id))
    reader = reader.option("partitionBytes", str(partition_bytes))
    if last_id is not None:
        reader = reader.option("to", str(last_id))
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    return reader.load()


class LogDataSource(DataSource):
    """A log as a table.

    Options: ``store`` (URL) and ``log`` (name), both required; ``from`` and ``to`` (ids, inclusive; default all);
    ``columns`` (names, separated by commas; default all); ``partitionBytes``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._request = LogRequest(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([SPARK_SCHEMA[name] for name in self._request.columns])

    def reader(self, schema: StructType) -> LogReader:
        return LogReader(self._request, schema.fieldNames())


class LogRequest:
    """What to read, checked: the options of :class:`LogDataSource`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.store = _required(options, "store")
        self.log = _required(options, "log")
        self.first_id = _whole(options, "from", None)
        self.last_id = _whole(options, "to", None)
        self.partition_bytes = _whole(options, "partitionBytes", PARTITION_BYTES)
        self.columns = checked_columns(options["columns"].split(",")) if "columns" in options else SPARK_SCHEMA.names


class BlockRun(InputPartition):
    """Messages *first_id* to *last_id*, the work of one task."""

    def __init__(self, first_id: int, last_id: int) -> None:
        super().__init__((first_id, last_id))
        self.first_id = first_id
        self.last_id = last_id


class LogReader(DataSourceReader):
    """Plans the partitions on the driver, and reads them on the executors."""

    def __init__(self, request: LogRequest, columns: Sequence[str]) -> None:
        self._request = request
        self._columns = checked_columns(columns)

    def partitions(self) -> list[InputPartition]:
        request = self._request
        with open_store(request.store, clock=SystemClock()) as store:
            log = store.log(LogSpec(request.log), create=False)
            if request.first_id is not None and request.first_id < log.first_id:
                raise PipelineInputError(
                    f"log {request.log!r} was trimmed and begins at id {log.first_id}: read it from there on, or leave "
                    "the option 'from' out"
                )
            blocks = log.block_ranges(request.first_id, request.last_id)
        return list(balance([(b.first_id, b.last_id, b.bytes) for b in blocks], request.partition_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BlockRun):  # Spark asks for one empty partition where there is none
            return
        schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in self._columns])
        with open_store(self._request.store, clock=SystemClock()) as store:
            log = store.log(LogSpec(self._request.log), create=False)
            for batch in log.read(partition.first_id, partition.last_id, self._columns, gaps="none"):
                yield batch.arrow.select(self._columns).cast(schema)


def balance(blocks: Sequence[tuple[int, int, int]], target: int) -> Iterator[BlockRun]:
    """Join neighbouring *blocks* (first id, last id, bytes) to runs of about *target* bytes, at most 10,000 runs."""
    target = max(target, sum(size for _, _, size in blocks) // MOST_PARTITIONS)
    start, filled = 0, 0
    for first_id, last_id, size in blocks:
        if not filled:
            start = first_id
        filled += max(size, 1)
        if filled >= target:
            yield BlockRun(start, last_id)
            filled = 0
    if filled:
        yield BlockRun(start, blocks[-1][1])


def checked_columns(names: Sequence[str]) -> list[str]:
    """*names*, all of them columns of a message. Raises :class:`PipelineInputError` otherwise."""
    unknown = [name for name in names if name not in SPARK_SCHEMA.names]
    if unknown or not names:
        raise PipelineInputError(f"columns {unknown}: a message has {', '.join(SPARK_SCHEMA.names)}")
    return list(names)


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise PipelineInputError(f"option {name!r} is missing: say .option({name!r}, …)")
    return value


def _whole(options: Mapping[str, str], name: str, default: Any) -> Any:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise PipelineInputError(f"option {name!r}: {text!r} is not a whole number of at least 1")
    return int(text)
