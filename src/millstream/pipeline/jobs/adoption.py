"""Reading what other programs wrote on Spark: executors read and hash, the driver adopts.

The driver lists the source and knows what is due (:class:`~millstream.mill.adoption.adoption_run.AdoptionRun`); tasks
read those items, as threads would, and say what they saw; the driver compares it with what is known and records it. So
the rules are those of ``millstream protect``, and so is the result. A portion is recorded before the next is read: a
run that was cut short resumes with what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from millstream.core.decoding import prepared
from millstream.mill.adoption.due_items import DueItems, NewFiles, ReadItems, ReadJob
from millstream.mill.adoption.item_reader import ItemReader, ReadResult
from millstream.mill.adoption.sources import SourceEntry
from millstream.mill.merge_join import groups
from millstream.pipeline.planning.equal_parts import assign_largest_first
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.task_rates import task_url
from millstream.stores import open_provider

PORTION = 50_000
"""Items that are read, and whose results the driver holds, between two commits."""

_TASKS_A_CORE = 4

JOB_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("bin", pa.int32(), nullable=False),
        pa.field("job", pa.binary(), nullable=False),
    ]
)
"""One row an item to read: its place in the portion, and a :class:`ReadOrder` as MessagePack."""

RESULT_SCHEMA = pa.schema(
    [pa.field("number", pa.int64(), nullable=False), pa.field("result", pa.binary(), nullable=False)]
)
"""One row an item that was read: its place in the portion, and a :class:`ReadResult` as MessagePack."""


class ReadOrder(msgspec.Struct, frozen=True, array_like=True):
    """An item to read: as it is listed, the checksums that are needed, and what it should hash to."""

    entry: SourceEntry
    algorithms: Sequence[str]
    expected: str | None


class SparkReader:
    """Reads items of the source at *url* in tasks of *spark*."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark, self._url = spark, url

    def read(self, space: str, due: Iterator[DueItems]) -> Iterator[ReadItems]:
        """See :class:`~millstream.mill.adoption.adopter.JobReader`."""
        jobs = (job for some in due for job in some.all_jobs())
        for portion in groups(jobs, PORTION):
            results = self._results(space, portion)
            yield ReadItems(NewFiles(), (), [(job, results[number]) for number, job in enumerate(portion)])

    def _results(self, space: str, jobs: Sequence[ReadJob]) -> dict[int, ReadResult]:
        count = max(1, min(len(jobs), _TASKS_A_CORE * self._spark.sparkContext.defaultParallelism))
        sizes = np.array([job.entry.size for job in jobs], np.int64)
        orders = [ReadOrder(job.entry, list(job.algorithms), job.sha256) for job in jobs]
        rows = pa.Table.from_arrays(
            [
                pa.array(range(len(jobs)), pa.int64()),
                pa.array(assign_largest_first(sizes, np.zeros(count, np.int64)), pa.int32()),
                pa.array([msgspec.msgpack.encode(order) for order in orders], pa.binary()),
            ],
            schema=JOB_SCHEMA,
        )
        task = partial(read_part, url=task_url(self._spark, self._url), space=space)
        frame = self._spark.createDataFrame(rows).repartitionById(count, "bin")
        found = frame.mapInArrow(task, spark_schema(RESULT_SCHEMA)).toArrow()
        decode = msgspec.msgpack.Decoder(prepared(ReadResult)).decode
        pairs = zip(found["number"].to_pylist(), found["result"].to_pylist(), strict=True)
        return {number: decode(result) for number, result in pairs}


def read_part(parts: Iterable[pa.RecordBatch], url: str, space: str) -> Iterator[pa.RecordBatch]:
    """Read the items in *parts* (:data:`JOB_SCHEMA`) of the source at *url*; rows of :data:`RESULT_SCHEMA`."""
    reader = ItemReader(open_provider(url), space)
    decode = msgspec.msgpack.Decoder(prepared(ReadOrder)).decode
    for part in parts:
        orders = [decode(job) for job in part.column("job").to_pylist()]
        results = [reader.read(order.entry, order.algorithms, order.expected) for order in orders]
        encoded = pa.array([msgspec.msgpack.encode(result) for result in results], pa.binary())
        yield pa.RecordBatch.from_arrays([part.column("number"), encoded], schema=RESULT_SCHEMA)
