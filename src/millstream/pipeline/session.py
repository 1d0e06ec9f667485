"""A Spark session in one call: on this machine by default, on any Spark master by its URL."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.connection import connected, is_connected
from millstream.pipeline.errors import PipelineInputError, SessionBusyError
from millstream.pipeline.gateway import start_gateway
from millstream.pipeline.java import find_java
from millstream.pipeline.source import register

_LOCAL = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?")
_MEMORY = re.compile(r"[1-9]\d*[kKmMgGtT]")
_SCRATCH = "spark-"


class SparkOptions(msgspec.Struct, frozen=True):
    """How to run Spark.

    ``master`` is a Spark master URL; ``driver_memory`` the most heap of the driver's Java machine (``1g``);
    ``java_home`` names a Java and is found by itself when empty; ``shuffle_partitions`` is the number of parts that
    data is redistributed into (None: the number of cores on a local master, else Spark's own default); ``quick``
    keeps to Java's fast compiler: half the start-up, right for jobs of minutes, wrong for jobs of hours; ``confs``
    are further Spark settings and win over ours.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    java_home: str = ""
    shuffle_partitions: int | None = None
    quick: bool = True
    confs: Mapping[str, str] = msgspec.field(default_factory=dict)


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
    with _scratch(work) as scratch:
        confs = _confs(options, scratch)
        gateway = start_gateway(
            java,
            confs,
            memory=_checked_memory(options.driver_memory),
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


def _checked_memory(memory: str) -> str:
    if not _MEMORY.fullmatch(memory):
        raise PipelineInputError(f"driver memory {memory!r}: write a whole number and a unit, such as 1g or 800m")
    return memory


@contextlib.contextmanager
def _scratch(work: Path) -> Iterator[Path]:
    """A folder of this process in *work*; those that dead processes left behind are removed."""
    work.mkdir(parents=True, exist_ok=True)
    for folder in work.glob(f"{_SCRATCH}[0-9]*-*"):
        owner = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-", dir=work))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
