"""Cuts that tasks pack, write to content-addressed storage, and read back: the driver only writes them down.

A task that runs twice writes the same files again, which changes nothing. Files of a cut that is not taken in the end
do no harm: nothing names them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from millstream.anchoring import CutLimits
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.packing import PackedCut, pack_cut
from millstream.core.decoding import prepared
from millstream.pipeline.planning.cut_plans import CutRows, read_plan, task_plan
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.task_rates import task_url
from millstream.pipeline.tasks.audit_task import open_cas

PLAN_SCHEMA = pa.schema(
    [
        pa.field("task", pa.int32(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("plan", pa.binary(), nullable=False),
    ]
)
"""One row a cut: which task packs it, its number, and its :class:`CutRows` as MessagePack."""

CUT_SCHEMA = pa.schema([pa.field("number", pa.int32(), nullable=False), pa.field("cut", pa.binary())])
"""One row a cut: its :class:`PackedCut` as MessagePack; null where it cannot be packed as it was planned."""

_WAVE_A_CORE, _MOST_IN_A_WAVE = 20_000, 200_000
"""Batches that are packed in one job of Spark: some hundred bytes each come back to the driver."""

_TASKS_A_CORE = 3

_WAVES = 2
"""While one is written down, the next is packed."""


class Packer:
    """Packs *plans* at *cas* (``auditing.open_cas``) by *limits*, some at a time, while those before are written down.

    Without *spark*, or where its tasks cannot reach *cas*, it packs nothing.
    """

    def __init__(self, spark: SparkSession | None, cas: str, limits: CutLimits, plans: Iterable[CutRows]) -> None:
        self._spark, self._cas, self._limits = spark, cas, limits
        self._plans = iter(plans)
        self._packing = spark is not None and _reaches(spark, cas)

    def stop(self) -> None:
        """Pack no more: what is left is given as it was planned."""
        self._packing = False

    def cuts(self) -> Generator[tuple[CutRows, PackedCut | None]]:
        """Each plan, in order, with its cut; with None where it is to be handed over batch by batch."""
        with ThreadPoolExecutor(1, "millstream-packing") as thread:
            waves = deque[tuple[list[CutRows], Future[Iterator[PackedCut | None]]]]()
            while True:
                while self._packing and len(waves) < _WAVES and (plans := self._wave()):
                    waves.append((plans, thread.submit(self._pack, plans)))
                if not waves:
                    break
                plans, packed = waves.popleft()
                for plan, cut in zip(plans, packed.result(), strict=True):
                    yield plan, cut if self._packing else None
        for plan in self._plans:
            yield plan, None

    @property
    def _cores(self) -> int:
        assert self._spark is not None
        return int(self._spark.sparkContext.defaultParallelism)

    def _wave(self) -> list[CutRows]:
        most = min(_MOST_IN_A_WAVE, _WAVE_A_CORE * self._cores)
        plans: list[CutRows] = []
        while sum(plan.batches for plan in plans) < most and (plan := next(self._plans, None)):
            plans.append(plan)
        return plans

    def _pack(self, plans: list[CutRows]) -> Iterator[PackedCut | None]:
        tasks = min(len(plans), _TASKS_A_CORE * self._cores)
        own = [msgspec.msgpack.encode(task_plan(plan, self._cores)) for plan in plans]
        rows = [(number % tasks, number, plan) for number, plan in enumerate(own)]
        arrays = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), PLAN_SCHEMA, strict=True)
        ]
        spark = self._spark
        assert spark is not None
        with spark_errors_explained("anchor"):
            work = partial(pack_part, cas=task_url(spark, self._cas), limits=self._limits)
            frame = spark.createDataFrame(pa.table(arrays, schema=PLAN_SCHEMA)).repartitionById(tasks, "task")
            found = frame.mapInArrow(work, spark_schema(CUT_SCHEMA)).toArrow().sort_by("number")
        return (_decode(data.as_py()) for data in found["cut"])


def pack_part(parts: Iterable[pa.RecordBatch], cas: str, limits: CutLimits) -> Iterator[pa.RecordBatch]:
    """Pack the cuts that are planned in *parts* (:data:`PLAN_SCHEMA`) at *cas*; yields :data:`CUT_SCHEMA`."""
    files = open_cas(cas)
    for part in parts:
        for number, plan in zip(part.column("number").to_pylist(), part.column("plan").to_pylist(), strict=True):
            batches = _that_fit(read_plan(msgspec.msgpack.decode(plan, type=prepared(CutRows))), limits)
            data = None if batches is None else msgspec.msgpack.encode(pack_cut(files, batches, limits.file_bytes))
            yield pa.RecordBatch.from_pylist([{"number": number, "cut": data}], CUT_SCHEMA)


def _reaches(spark: SparkSession, cas: str) -> bool:
    """Whether tasks of *spark* reach the storage at *cas*: a folder of this host they do on this host alone."""
    return not cas.startswith("cas:") or bool(spark.sparkContext.master.startswith("local"))


def _that_fit(batches: Iterable[EncodedBatch], limits: CutLimits) -> list[EncodedBatch] | None:
    """*batches*; None where one of them fits in no file, or all of them in no cut."""
    found, total = list[EncodedBatch](), 0
    for batch in batches:
        size = len(batch.header_line) + 1 + len(batch.lines)
        total += size
        if size > limits.file_bytes or total > limits.cut_bytes:
            return None
        found.append(batch)
    return found


def _decode(data: bytes | None) -> PackedCut | None:
    return None if data is None else msgspec.msgpack.decode(data, type=prepared(PackedCut))
