"""A Spark session in one call: on this machine by default, on any Spark master by its URL.

PySpark is imported while Java starts: that takes a second, and Java takes several.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millstream.core.clock import Clock, SystemClock
from millstream.core.durable import file_lock
from millstream.core.lock_files import open_to_lock
from millstream.pipeline.class_archive import archive_path, using, writing
from millstream.pipeline.errors import PipelineInputError, SessionBusyError, SessionStartError
from millstream.pipeline.gateway import start_gateway
from millstream.pipeline.java import JavaCandidate, find_java
from millstream.pipeline.settings import RESULTS_SETTING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STOPPING, _DUMPING = 20.0, 120.0
"""Seconds that the Java machine has to end, and to write its archive of classes before."""

_LOCAL = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?")
_MEMORY = re.compile(r"([1-9]\d*)([kKmMgGtT])")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_GROUPS_SHARE = 8
"""The row groups of Parquet files that all cores write at once take one in this many bytes of the heap (and as much
again when they are written out); Spark's sorting takes up to half of it."""

_SHUFFLE_CHECKSUMS = ("spark.shuffle.checksum.enabled", "spark.sql.shuffle.orderIndependentChecksum.enabled")
"""The first says where a block was damaged on its way, the second whether a task that is repeated wrote other rows."""

_ARROW_BYTES = "8m"
"""Java gathers so much for a task in Python, outside its heap, and three times as much while it grows: with Spark's own
64 MB, jobs whose rows are shares of messages took 200 MB a core."""

LEAST_MEMORY = 512 << 20
"""Spark refuses to start unless 450 MiB of the heap can be used; a collector keeps up to a ninth of it to itself."""

_LEAST_GROUP, _MOST_GROUP = 4 << 20, 128 << 20


class SparkOptions(msgspec.Struct, frozen=True):
    """How to run Spark.

    ``master`` is a Spark master URL; ``driver_memory`` the most heap of the driver's Java machine (``1g``);
    ``java_home`` names a Java and is found by itself when empty; ``shuffle_partitions`` is the number of parts that
    data is redistributed into (None: the number of cores on a local master, else Spark's own default); ``quick``
    limits Java to its fast compiler, which halves the start time, but slows down jobs that run for hours; ``confs``
    are further Spark settings and win over ours; ``results`` is the URL of the storage provider for results of jobs
    (empty: they go to the jobs' folders). Raises :class:`PipelineInputError` for a memory that is none, or less
    than Spark starts with.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    java_home: str = ""
    shuffle_partitions: int | None = None
    quick: bool = True
    confs: Mapping[str, str] = msgspec.field(default_factory=dict)
    results: str = ""

    def __post_init__(self) -> None:
        if not _MEMORY.fullmatch(self.driver_memory):
            raise PipelineInputError(
                f"invalid driver memory {self.driver_memory!r}: write a whole number and a unit, such as 1g or 800m"
            )
        if _bytes(self.driver_memory) < LEAST_MEMORY:
            raise PipelineInputError(
                f"driver memory {self.driver_memory!r} is too small for Spark: set "
                "pipeline.driver_memory to 512m or more"
            )


@contextlib.contextmanager
def spark_session(
    work: Path, options: SparkOptions | None = None, *, registered: bool = True, clock: Clock | None = None
) -> Iterator[SparkSession]:
    """A Spark session with the data source ``millstream``, stopped when the block is left, its Java machine with it.

    *work* is a folder for Spark's scratch files and logs. Unless *registered*, the data source is registered only by
    functions that read or write a log: Spark starts a Python process for the first registration. One session a process
    at a time. When the driver dies, the Java machine sees its input close and ends too. Raises
    :class:`SessionBusyError`, :class:`JavaNotFoundError`, :class:`SessionStartError`, :class:`PipelineInputError`.
    """
    options, work = options or SparkOptions(), work.absolute()
    java = find_java(options.java_home)
    classes = using(archive_path(work, java, quick=options.quick), java)
    with _session(work, options, java, classes, clock or SystemClock()) as spark:
        if registered:
            _register(spark)
        yield spark


def warm_up(
    work: Path, options: SparkOptions | None = None, *, clock: Clock | None = None
) -> tuple[Path, float, float]:
    """Write the archive of classes that sessions in *work* begin with; returns where it is, and two lengths of time in
    seconds: what a session with a first query took without it, and what it takes with it.

    Raises :class:`SessionStartError` where Java writes none, and what :func:`spark_session` raises.
    """
    options, work, clock = options or SparkOptions(), work.absolute(), clock or SystemClock()
    java = find_java(options.java_home)
    archive = archive_path(work, java, quick=options.quick)
    archive.unlink(missing_ok=True)
    draft = archive.with_suffix(".draft")
    before = _time_query(work, options, java, writing(draft, java), clock)
    if not draft.is_file():
        raise SessionStartError(
            f"Java {java.version} at {java.executable} did not write its class archive (CDS): see spark-console.log in "
            f"{work}"
        )
    draft.replace(archive)
    return archive, before, _time_query(work, options, java, using(archive, java), clock)


def _time_query(work: Path, options: SparkOptions, java: JavaCandidate, classes: Sequence[str], clock: Clock) -> float:
    began = clock.monotonic()
    with _session(work, options, java, classes, clock, patience=_DUMPING) as spark:
        _register(spark)
        spark.sql("select id % 7 as k, count(*), sum(id) from range(1000) group by k").toArrow()
        return round(clock.monotonic() - began, 3)


@contextlib.contextmanager
def _session(
    work: Path,
    options: SparkOptions,
    java: JavaCandidate,
    classes: Sequence[str],
    clock: Clock,
    *,
    patience: float = _STOPPING,
) -> Iterator[SparkSession]:
    if _is_connected():
        raise SessionBusyError
    with scratch_folder(work) as scratch:
        gateway = start_gateway(
            java,
            _confs(options, scratch),
            memory=options.driver_memory,
            quick=options.quick,
            work=work,
            clock=clock,
            more=classes,
            meanwhile=_import_pyspark,
        )
        from millstream.pipeline.gateway_connection import connected

        try:
            with contextlib.ExitStack() as stack:  # what has begun last ends first
                local = cores_of(options.master) is not None
                starting = ThreadPoolExecutor(1, "millstream-start-python")
                stack.callback(starting.shutdown)
                spark = stack.enter_context(connected(gateway))
                if local:
                    starting.submit(_start_python, spark)
                yield spark
        finally:
            gateway.stop(patience)


def _start_python(spark: SparkSession) -> None:
    """Have the process started that Python tasks are forked from, while Java plans the first query.

    It needs a second, since it imports what tasks need. A session that ends meanwhile stops this job.
    """
    spark.sparkContext.parallelize([0], 1).foreachPartition(_do_nothing)


def _do_nothing(_rows: Iterator[int]) -> None:
    pass


def _import_pyspark() -> None:
    import millstream.pipeline.gateway_connection  # noqa: F401


def _is_connected() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from millstream.pipeline.gateway_connection import is_connected

    return is_connected()


def _register(spark: SparkSession) -> None:
    from millstream.pipeline.source import register

    register(spark)


def cores_of(master: str) -> int | None:
    """How many tasks run at once under a local *master* URL; None where it is a cluster's."""
    match = _LOCAL.fullmatch(master)
    if not match:
        return None
    if match.group(2) == "*":
        return len(os.sched_getaffinity(0))
    return int(match.group(2) or 1)


def _row_group(memory: str, cores: int | None) -> int:
    """Bytes that a task gathers for a row group of Parquet, with *memory* shared by *cores*; fixed for executors.

    With Parquet's own 128 MB a core, sorting beside it, a heap of a gigabyte overflows when a job writes a lot.
    """
    if cores is None:
        return 32 << 20
    return max(_LEAST_GROUP, min(_MOST_GROUP, _bytes(memory) // _GROUPS_SHARE // cores))


def _bytes(memory: str) -> int:
    """The bytes of a number with a unit, as ``driver_memory`` has them."""
    return int(memory[:-1]) * _UNITS[memory[-1].lower()]


def _confs(options: SparkOptions, scratch: Path) -> dict[str, str]:
    cores = cores_of(options.master)
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
        "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",  # as Spark SQL sets it: one daemon for all Python tasks
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),  # TCP costs a sixth more
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.maxBytesPerBatch": _ARROW_BYTES,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.hadoop.parquet.block.size": str(_row_group(options.driver_memory, cores)),
    }
    if cores is not None:
        confs["spark.driver.host"] = confs["spark.driver.bindAddress"] = "127.0.0.1"
        confs["spark.default.parallelism"] = str(cores)
        # what is shuffled goes no farther than this machine's disk cache, and no host is lost with it
        for name in ("spark.shuffle.compress", *_SHUFFLE_CHECKSUMS):
            confs[name] = "false"
    partitions = options.shuffle_partitions or cores
    if partitions is not None:
        confs["spark.sql.shuffle.partitions"] = str(partitions)
    if options.results:
        confs[RESULTS_SETTING] = options.results
    return confs | dict(options.confs)


_PREFIX, _LOCK = "spark-", "lock"


@contextlib.contextmanager
def scratch_folder(work: Path) -> Iterator[Path]:
    """A new folder in *work*, gone when the block is left; those of processes that are no more are removed too.

    Its process holds a lock in it, so that no process that cannot see this one, as in a container, removes the folder.
    """
    work.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(work)
    draft = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}new-", dir=work))
    scratch = draft.with_name(f"{_PREFIX}{os.getpid()}-{draft.name.rpartition('-')[2]}")
    try:
        with file_lock(draft / _LOCK):
            draft.rename(scratch)  # locked before others look for it
            yield scratch
    finally:
        for folder in (draft, scratch):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(work: Path) -> None:
    for folder in work.glob(f"{_PREFIX}[0-9]*-*"):
        if not _is_in_use(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    """Whether the process of the scratch *folder* may still run; those of earlier releases have no lock in it."""
    owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
    try:
        handle = open_to_lock(folder / _LOCK)
    except FileNotFoundError:
        return not owner.isdigit() or Path("/proc", owner).exists()
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
