"""The batches of a job that amendments replaced: tasks find them, and a reader of the output passes over them.

They lie beside the output in its order, so a reader holds those that begin while it reads, and not all of them. Where
they are missing, as in jobs of earlier releases, the ids come from the output, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.durable import sync_folder
from millstream.pipeline.output.job_folder import parquet_rows, sync_file
from millstream.pipeline.output.shared_output import rows_in, write_output
from millstream.pipeline.result_parts import locations
from millstream.pipeline.schema import read_parquet
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA

_COLUMNS = ["start", "batch"]
_SCHEMA = pa.schema([BATCH_SCHEMA.field(name) for name in _COLUMNS])

_NONE = pa.array([], pa.string())

ReplacedIds: TypeAlias = Callable[[pa.RecordBatch], pa.Array]
"""Gives the ids of the replaced batches among some batches of the output, which come in their order: without the
refused messages, whose starts do not ascend with those of the batches."""


class ReplacedBatches(NamedTuple):
    """How many batches amendments replaced, and the messages in them: these are counted in the amendments."""

    batches: int = 0
    messages: int = 0


def write_replaced(spark: SparkSession, data: Path) -> ReplacedBatches:
    """Write the replaced batches of the output *data* beside it, durably. Raises as ``write_output``."""
    rows = read_parquet(spark, data, BATCH_SCHEMA)
    gone = rows.select(F.explode("amends").alias("batch")).distinct()
    named = rows.where("batch is not null").select(*_COLUMNS, F.size("ids").alias("messages"))
    found = named.join(gone, "batch", "left_semi").repartition(1).sortWithinPartitions(*_COLUMNS)
    figures, folder = Observation(), _folder(data)
    counted = found.observe(figures, F.count("batch").alias("batches"), F.sum("messages").alias("messages"))
    write_output(counted.select(*_COLUMNS), folder)
    for path in folder.glob("*.parquet"):
        sync_file(path)
    sync_folder(folder)
    return ReplacedBatches(**{name: figures.get[name] or 0 for name in ReplacedBatches._fields})


def replaced_ids(data: Path, count: int) -> ReplacedIds:
    """The *count* replaced batches of the output *data*, for one reading of it from its beginning."""
    if not count:
        return lambda _: _NONE
    if _written(_folder(data)) == count:
        return _ReplacedInOrder(parquet_rows(_folder(data), _COLUMNS)).among
    parts = parquet_rows(data, ["amends"])
    named = pa.concat_arrays([_NONE, *(part.column("amends").flatten() for part in parts)])
    return lambda _: named


def _written(folder: Path) -> int:
    return sum(rows_in(locations(folder)))


class _ReplacedInOrder:
    """Goes through replaced batches as a reader goes through the output."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self._ahead = _SCHEMA.empty_table()

    def among(self, part: pa.RecordBatch) -> pa.Array:
        """The ids of those that begin within *part*."""
        span = pc.min_max(part.column("start")).as_py()
        if span["min"] is None:
            return _NONE
        self._ahead = self._ahead.filter(pc.greater_equal(self._ahead["start"], span["min"]))
        while not len(self._ahead) or self._ahead["start"][-1].as_py() <= span["max"]:
            if (more := next(self._rows, None)) is None:
                break
            self._ahead = pa.concat_tables([self._ahead, pa.Table.from_batches([more.cast(_SCHEMA)])])
        return self._ahead.filter(pc.less_equal(self._ahead["start"], span["max"]))["batch"].combine_chunks()


def _folder(data: Path) -> Path:
    return data.with_name("replaced")
