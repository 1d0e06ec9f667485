"""The data source ``millstream``: a log as a Spark DataFrame or stream, for reading and writing.

Partitions are runs of whole blocks, balanced by bytes; executors open the log store themselves, or read the objects of
a bucket in which the driver located the blocks, and hand record batches on as they lie in the blocks, with no Python
object a message.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log import CorruptBlockError
from millstream.log.gap import Gap, Gaps
from millstream.pipeline.block_ranges import IdRangePartition, plan_block_ranges
from millstream.pipeline.data_source_registration import register_source
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.output.log_sink import LogStreamWriter, LogWriter
from millstream.pipeline.reachable import check_reachable
from millstream.pipeline.read_options import PARTITION_BYTES, TASKS_A_CORE, LogReadOptions, checked_columns
from millstream.pipeline.run_reader import read_run
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.trigger_limits import TriggerLimitedReader
from millstream.pipeline.unreadable import Quarantine

NAME = "millstream"
"""The name in ``spark.read.format(…)`` and ``spark.readStream.format(…)``."""

SPARK_SCHEMA = spark_schema(MESSAGE_SCHEMA)
"""The message in Spark: the same columns as :data:`millstream.core.message.MESSAGE_SCHEMA`."""


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("millstream")`` known to *spark*; the functions of this module do it by themselves."""
    register_source(spark, LogDataSource)


def read_log(
    spark: SparkSession,
    store_url: str,
    log: str,
    *,
    first_id: int | None = None,
    last_id: int | None = None,
    since: str = "",
    until: str = "",
    columns: Sequence[str] | None = None,
    partition_bytes: int = PARTITION_BYTES,
    quarantine: str = "",
) -> DataFrame:
    """The messages of *log* from *first_id* to *last_id* (None: the first and the last it has), as a DataFrame.

    *since* and *until* are times of receipt instead: from the first message received at *since* or later, up to before
    the first one received at *until* or later; ISO 8601, or microseconds since the epoch.
    *columns* are the only ones decoded and handed over, in this order: name those that a query needs, since Spark
    cannot ask a data source in Python for less than it offers. *partition_bytes* are what a partition aims at.
    A damaged or missing block fails the query, unless *quarantine* is the URL of a storage provider: then what cannot
    be read is noted there (:class:`~millstream.pipeline.unreadable.Quarantine`), and the rest is read.
    Raises :class:`PipelineInputError` for a store in files that executors do not see.
    """
    check_reachable(spark, store_url)
    register(spark)
    reader = spark.read.format(NAME).option("store", store_url).option("log", log)
    reader = reader.option("leastPartitions", str(TASKS_A_CORE * spark.sparkContext.defaultParallelism))
    if quarantine:
        reader = reader.option("quarantine", quarantine)
    if first_id is not None:
        reader = reader.option("from", str(first_id))
    reader = reader.option("partitionBytes", str(partition_bytes))
    if last_id is not None:
        reader = reader.option("to", str(last_id))
    for name, time in (("since", since), ("until", until)):
        if time:
            reader = reader.option(name, time)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    return reader.load()


def follow_log(
    spark: SparkSession,
    store_url: str,
    log: str,
    *,
    first_id: int | None = None,
    since: str = "",
    columns: Sequence[str] | None = None,
    per_trigger: int | None = None,
    bytes_per_trigger: int | None = None,
    quarantine: str = "",
) -> DataFrame:
    """The messages of *log* from *first_id* (None: the first it has) on, as a streaming DataFrame.

    *since* is the time of receipt of the first one instead, as in :func:`read_log`. *columns* are the only ones
    decoded, in this order; a trigger takes at most *per_trigger* messages and *bytes_per_trigger* bytes.
    *quarantine* is where what cannot be read is noted, as in :func:`read_log`; without it the query fails there.
    Raises :class:`PipelineInputError` for a store in files that executors do not see.
    """
    check_reachable(spark, store_url)
    register(spark)
    reader = spark.readStream.format(NAME).option("store", store_url).option("log", log)
    if quarantine:
        reader = reader.option("quarantine", quarantine)
    if first_id is not None:
        reader = reader.option("from", str(first_id))
    if since:
        reader = reader.option("since", since)
    if per_trigger is not None:
        reader = reader.option("maxMessagesPerTrigger", str(per_trigger))
    if bytes_per_trigger is not None:
        reader = reader.option("maxBytesPerTrigger", str(bytes_per_trigger))
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    return reader.load()


def write_log(frame: DataFrame, store_url: str, log: str, *, write: str = "", staging: str = "") -> None:
    """Append the rows of *frame* to *log*, made where absent: partition by partition, each in its order.

    *frame* has the columns of a message, at least ``body`` (bytes or text); times are microseconds or timestamps, null
    is not set, and ids are the log's to give. *write* names the write: one of that name that is done is not done again,
    and one whose driver died is finished. *staging* is the URL of a storage provider that all hosts reach (default:
    beside the files of the log store). Raises :class:`PipelineInputError` for a store in files that executors do not
    see.
    """
    check_reachable(frame.sparkSession, store_url)
    register(frame.sparkSession)
    writing = frame.write.format(NAME).mode("append").option("store", store_url).option("log", log)
    if write:
        writing = writing.option("write", write)
    if staging:
        writing = writing.option("staging", staging)
    writing.save()


def requested_schema(schema: StructType) -> pa.Schema:
    """What a user asks for by ``.schema(…)``, in Arrow: columns of a message in any order, nullable or not.

    Raises :class:`PipelineInputError` for a column of another type.
    """
    for field in schema.fields:
        stored = SPARK_SCHEMA[field.name].dataType
        if not _same_type(field.dataType, stored):
            raise PipelineInputError(
                f"column {field.name!r} cannot be read as {field.dataType.simpleString()}; a log stores "
                f"{stored.simpleString()}: read it as that, and cast it afterwards"
            )
    return to_arrow_schema(schema, timezone="UTC")


def _same_type(asked: DataType, stored: DataType) -> bool:
    """Whether two types are the same but for what may be null in them."""
    return bool(asked.simpleString() == stored.simpleString())


class LogDataSource(DataSource):
    """A log as a table.

    Options: ``store`` (URL) and ``log`` (name), both required; ``from`` and ``to`` (ids, inclusive; default all), or
    ``since`` and ``until`` (times of receipt; the second is exclusive);
    ``columns`` (names, separated by commas; default all); ``partitionBytes`` and ``leastPartitions`` (how the reading
    is shared out); ``quarantine`` (URL of a storage provider: what cannot be read is noted there and left out; default:
    the query fails). For streams also ``maxMessagesPerTrigger`` and
    ``maxBytesPerTrigger``. For writing also ``staging`` and ``write``
    (:func:`write_log`).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = options
        self._request = LogReadOptions(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([SPARK_SCHEMA[name] for name in self._request.columns])

    def reader(self, schema: StructType) -> LogReader:
        return LogReader(self._request, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        return LogStreamReader(self._request, schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        return LogWriter(self._options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        return LogStreamWriter(self._options, schema, overwrite=overwrite)


class LogReader(DataSourceReader):
    """Plans the partitions on the driver, and reads them on the executors."""

    def __init__(self, request: LogReadOptions, schema: StructType) -> None:
        self._request = request
        self._columns = checked_columns(schema.fieldNames())
        self._schema = requested_schema(schema)
        self._quarantine = Quarantine(request.quarantine, request.log) if request.quarantine else None

    def partitions(self) -> list[InputPartition]:
        return self.plan()

    def plan(self, first_id: int | None = None, last_id: int | None = None) -> list[InputPartition]:
        """The runs of the messages from *first_id* to *last_id* (None: all that is asked for)."""
        if self._quarantine is not None:
            self._quarantine.prepare()
        return [*plan_block_ranges(self._request, first_id, last_id)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, IdRangePartition):  # Spark asks for one empty partition where there is none
            return
        request, quarantine = self._request, self._quarantine
        gaps: Gaps = "none" if quarantine is None else "all"
        for batch in read_run(request, partition, self._columns, gaps):
            gap = batch if isinstance(batch, Gap) else None
            try:
                messages = batch.arrow.select(self._columns)
            except CorruptBlockError as error:
                if quarantine is None:
                    raise
                gap = Gap(request.log, batch.ids, "corrupt", error=error)
            if quarantine is not None and gap is not None:
                quarantine.record(gap)
            else:
                yield self._as_requested(messages)

    def _as_requested(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """*messages* with the nullability that the user's schema states: Spark compares it."""
        if messages.schema == self._schema:
            return messages
        columns = [column.cast(field.type) for column, field in zip(messages.columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class LogStreamReader(TriggerLimitedReader):
    """Plans the triggers of a stream on the driver; the executors read them as they read a table."""

    def __init__(self, request: LogReadOptions, schema: StructType) -> None:
        super().__init__(request)
        self._reader = LogReader(request, schema)

    def plan(self, first_id: int, last_id: int) -> Sequence[InputPartition]:
        """The runs of a trigger."""
        return self._reader.plan(first_id, last_id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)
