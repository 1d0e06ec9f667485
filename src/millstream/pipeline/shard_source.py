"""The data source ``millstream-shards``: a log as shares of shards, for jobs that batch it.

As a table (:func:`read_shares`) it has a row for each shard and run of blocks. Read as a stream it has a trigger's
shares, and in each trigger one *tick* row for every shard, which says how far the log's clock has come: the receive
time of the last message of the trigger, the same for all. So quiet shards move on too, and no timer and no watermark of
Spark is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from millstream.batching.message_columns import COLUMNS
from millstream.batching.service_state import naming_state, read_state
from millstream.batching.snapshot_split import split_snapshot
from millstream.core.decoding import prepared
from millstream.core.documents import FileDocument
from millstream.core.message import MESSAGE_SCHEMA
from millstream.log import LogSpec
from millstream.pipeline.block_ranges import IdRangePartition, decode_run, encode_run, plan_block_ranges
from millstream.pipeline.data_source_registration import register_source
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.planning_store import open_to_plan
from millstream.pipeline.read_options import OPTIONS, LogReadOptions, required, whole
from millstream.pipeline.run_reader import read_run
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.shard_shares import Cuts, shard_of, shares_of, write_share
from millstream.pipeline.trigger_limits import Offset, TriggerLimitedReader

NAME = "millstream-shards"

SHARD_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("first_id", pa.int64(), nullable=False),
        pa.field("last_id", pa.int64(), nullable=False),
        pa.field("received_from", pa.int64(), nullable=False),
        pa.field("received_to", pa.int64(), nullable=False),
        pa.field("tick", pa.bool_(), nullable=False),
        pa.field("share", pa.binary()),
        pa.field("seed", pa.binary()),
    ]
)
"""One row a share: the ids and receive times of the messages that it was taken from, and its Arrow IPC stream.

In a tick row the ids are those of the whole trigger, ``received_to`` is the clock at its end, ``share`` is null, and
``seed`` is the snapshot that the shard begins with, where the trigger is the first and there is one.
"""


class ShardDataSource(DataSource):
    """A log as a stream of shares of shards.

    Options: those of the data source ``millstream`` without ``columns``, and ``shards`` (how many) and ``whole``
    (``true``: shares of whole messages, :func:`~millstream.pipeline.shard_shares.shares_of`) and ``cuts`` (JSON: where
    the messages of a source go on in the next shard, :data:`~millstream.pipeline.shard_shares.Cuts`), ``barrier`` (an
    id that a trigger must end at), and ``state`` and ``output`` (the state file of a batch service and the log it
    writes to): the stream begins after the position of that state, with its snapshot.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._request = ShardReadOptions(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(SHARD_SCHEMA)

    def streamReader(self, schema: StructType) -> ShardStreamReader:  # noqa: ARG002
        return ShardStreamReader(self._request)


class ShardReadOptions(LogReadOptions):
    """The options of :class:`ShardDataSource`, checked."""

    known = (*OPTIONS, "shards", "whole", "cuts", "state", "output")

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.shards: int = whole(options, "shards", 1)
        self.whole = options.get("whole") == "true"
        self.cuts: Cuts = msgspec.json.decode(options.get("cuts", "{}"), type=prepared(dict[str, list[int]]))
        self.state = Path(options["state"]) if "state" in options else None
        self.output = required(options, "output") if self.state else ""


class TickRange(InputPartition):
    """The tick rows of the trigger from *first_id* to *last_id*, at *clock*, with the *seeds* of the shards if any."""

    def __init__(self, first_id: int, last_id: int, clock: int, seeds: Sequence[bytes | None]) -> None:
        super().__init__((first_id, last_id))
        self.first_id, self.last_id, self.clock, self.seeds = first_id, last_id, clock, seeds


class ShardStreamReader(TriggerLimitedReader):
    """Plans the triggers of a stream of shares on the driver; the executors read them.

    Its offsets also have ``received_at``, the receive time of the last message: a log that lost messages gives their
    ids to other ones.
    """

    def __init__(self, request: ShardReadOptions) -> None:
        super().__init__(request)
        self._shards = request
        self._last = (0, 0)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        end = super().latestOffset(start, limit)
        return {**end, "received_at": self._clock_at(end["id"])} if end["id"] > start["id"] else start

    def _clock_at(self, last_id: int) -> int:
        """The receive time of message *last_id*, which is asked for again when its trigger is planned."""
        if self._last[0] != last_id:
            self._last = last_id, _clock_at(self._shards, last_id)
        return self._last[1]

    def plan(self, first_id: int, last_id: int) -> Sequence[InputPartition]:
        """The blocks of the trigger, and its ticks."""
        request = self._shards
        clock = self._clock_at(last_id)
        runs = plan_block_ranges(request, first_id, last_id)
        seeds = self._seeds(first_id) if first_id == request.first_id else [None] * request.shards
        return [*runs, TickRange(first_id, last_id, clock, seeds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TickRange):
            yield _ticks(partition)
        elif isinstance(partition, IdRangePartition):  # Spark asks for one empty partition where there is none
            yield from _shares(self._shards, partition, ordered=True)

    def _seeds(self, first_id: int) -> Sequence[bytes | None]:
        request = self._shards
        file = FileDocument(request.state) if request.state is not None else None
        state = read_state(file, request.log, request.output) if file is not None else None
        if file is None or state is None:
            return [None] * request.shards
        if state.position != first_id - 1:
            raise PipelineInputError(
                f"the state file {request.state} ends at message {state.position}, but the stream begins at message "
                f"{first_id}: give the state file that ends at message {first_id - 1}, or begin at message "
                f"{state.position + 1} (option 'from')"
            )
        with naming_state(file):
            return split_snapshot(state.snapshot, lambda source: shard_of(source, request.shards), request.shards)


def register(spark: SparkSession) -> None:
    """Make the data source known to *spark*."""
    register_source(spark, ShardDataSource)


def read_shares(spark: SparkSession, request: ShardReadOptions) -> DataFrame:
    """The shares of the messages that *request* asks for, as rows of :data:`SHARD_SCHEMA`, each run in a task.

    The runs are planned here: for a data source, Spark would start three Python processes, one after the other.
    """
    runs = plan_block_ranges(request)
    table = pa.table({"number": pa.array(range(len(runs)), pa.int32()), "run": [encode_run(run) for run in runs]})
    frame = spark.createDataFrame(table).repartitionById(len(runs), "number")
    return frame.mapInArrow(partial(read_runs, request=request), spark_schema(SHARD_SCHEMA))


def read_runs(parts: Iterable[pa.RecordBatch], request: ShardReadOptions) -> Iterator[pa.RecordBatch]:
    """The shares of the runs (:func:`encode_run`) in the column ``run`` of *parts*."""
    for part in parts:
        for run in part.column("run").to_pylist():
            yield from _shares(request, decode_run(run))


def _shares(request: ShardReadOptions, run: IdRangePartition, *, ordered: bool = False) -> Iterator[pa.RecordBatch]:
    columns = MESSAGE_SCHEMA.names if request.whole else COLUMNS
    for batch in read_run(request, run, columns, "none"):
        messages = batch.arrow.select(columns)
        if ordered:
            _check_order(request.log, messages)
        yield _rows(messages, request)


def _clock_at(request: LogReadOptions, last_id: int) -> int:
    """The receive time of message *last_id*."""
    with open_to_plan(request.store) as store:
        log = store.log(LogSpec(request.log), create=False)
        (batch,) = log.read(last_id, last_id, ["received_at"], gaps="none")
        clock: int = batch.arrow.column("received_at")[0].as_py()
        return clock


def _check_order(log: str, messages: pa.RecordBatch) -> None:
    back = np.flatnonzero(np.diff(messages.column("received_at").to_numpy()) < 0)
    if len(back):
        number = messages.column("id")[int(back[0]) + 1].as_py()
        raise PipelineInputError(
            f"message {number} of {log!r} has an earlier receive time than the message before it: batch "
            f"an imported log as history, with `millstream pipeline batch {log}`"
        )


def _rows(messages: pa.RecordBatch, request: ShardReadOptions) -> pa.RecordBatch:
    ids, received = messages.column("id"), pc.min_max(messages.column("received_at")).as_py()
    dealt = shares_of(messages, request.shards, whole=request.whole, cuts=request.cuts)
    shares = [(shard, write_share(share)) for shard, share in dealt]
    same = (ids[0].as_py(), ids[-1].as_py(), received["min"], received["max"], False)
    return _table([(shard, *same, share, None) for shard, share in shares])


def _ticks(run: TickRange) -> pa.RecordBatch:
    same = (run.first_id, run.last_id, run.clock, run.clock, True, None)
    return _table([(shard, *same, seed) for shard, seed in enumerate(run.seeds)])


def _table(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((),) * len(SHARD_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SHARD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SHARD_SCHEMA)
