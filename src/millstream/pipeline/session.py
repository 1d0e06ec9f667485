"""A Spark session in one call: on this machine by default, on any Spark master by its URL."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.connection import connected, is_connected
from millstream.pipeline.errors import PipelineInputError, SessionBusyError
from millstream.pipeline.gateway import start_gateway
from millstream.pipeline.java import find_java
from millstream.pipeline.scratch import scratch_folder
from millstream.pipeline.source import register

_LOCAL = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?")
_MEMORY = re.compile(r"[1-9]\d*[kKmMgGtT]")


class SparkOptions(msgspec.Struct, frozen=True):
    """How to run Spark.

    ``master`` is a Spark master URL; ``driver_memory`` the most heap of the driver's Java machine (``1g``);
    ``java_home`` names a Java and is found by itself when empty; ``shuffle_partitions`` is the number of parts that
    data is redistributed into (None: the number of cores on a local master, else Spark's own default); ``quick``
    keeps to Java's fast compiler: half the start-up, right for jobs of minutes, wrong for jobs of hours; ``confs``
    are further Spark settings and win over ours. Raises :class:`PipelineInputError` for a memory that is none.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    java_home: str = ""
    shuffle_partitions: int | None = None
    quick: bool = True
    confs: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _MEMORY.fullmatch(self.driver_memory):
            raise PipelineInputError(
                f"driver memory {self.driver_memory!r}: write a whole number and a unit, such as 1g or 800m"
            )


@contextlib.contextmanager
def spark_session(
    work: Path, options: SparkOptions | None = None, *, clock: Clock | None = None
) -> Iterator[SparkSession]:
    """A Spark session with the data source ``millstream``, stopped when the block is left, its Java machine with it.

    *work* is a folder for Spark's scratch files and logs. One session a process at a time. When the driver dies, the
    Java machine sees its input close and ends too. Raises :class:`SessionBusyError`, :class:`JavaNotFoundError`,
    :class:`SessionStartError`, :class:`PipelineInputError`.
    """
    options = options or SparkOptions()
    if is_connected():
        raise SessionBusyError
    java = find_java(options.java_home)
    work = work.absolute()
    with scratch_folder(work) as scratch:
        confs = _confs(options, scratch)
        gateway = start_gateway(
            java,
            confs,
            memory=options.driver_memory,
            quick=options.quick,
            work=work,
            clock=clock or SystemClock(),
        )
        try:
            with connected(gateway) as spark:
                register(spark)
                yield spark
        finally:
            gateway.stop()


def cores_of(master: str) -> int | None:
    """How many tasks run at once under a local *master* URL; None where it is a cluster's."""
    match = _LOCAL.fullmatch(master)
    if not match:
        return None
    if match.group(2) == "*":
        return len(os.sched_getaffinity(0))
    return int(match.group(2) or 1)


def _confs(options: SparkOptions, scratch: Path) -> dict[str, str]:
    confs = {
        "spark.app.name": "millstream",
        "spark.master": options.master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": "millstream.pipeline.daemon",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    cores = cores_of(options.master)
    if cores is not None:
        confs["spark.driver.host"] = confs["spark.driver.bindAddress"] = "127.0.0.1"
        confs["spark.default.parallelism"] = str(cores)
    partitions = options.shuffle_partitions or cores
    if partitions is not None:
        confs["spark.sql.shuffle.partitions"] = str(partitions)
    return confs | dict(options.confs)
