"""Making PySpark connect to a Java machine that we started, and forget it afterwards.

PySpark keeps its connection in class attributes and expects it to last as long as the process. What we set back here
is internal to PySpark 4.3 and covered by tests: a second session, and a session whose Java machine was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from millstream.pipeline.gateway import Gateway

_logs: list[Path] = []  # of the session, if there is one


@contextlib.contextmanager
def connected(gateway: Gateway) -> Iterator[SparkSession]:
    """A session on the Java machine of *gateway*; its context is stopped when the block is left."""
    with _own_interrupt_handler() as put_back:
        _logs.append(gateway.logs)
        try:
            with _environment(gateway.environment() | {"PYSPARK_PYTHON": sys.executable}):
                spark = SparkSession.builder.getOrCreate()
            put_back()
            yield spark
        finally:
            _disconnect()
            _logs.clear()


def log_folder() -> Path | None:
    """The folder with the log files of this process's Java machine; None without one that we started."""
    return _logs[-1] if _logs else None


def is_connected() -> bool:
    """Whether this process has a Spark session."""
    return SparkContext._active_spark_context is not None


def _disconnect() -> None:
    spark = SparkSession._instantiatedSession
    if spark is not None:
        with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that the Java machine is gone was said before
            spark.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def _own_interrupt_handler() -> Iterator[Callable[[], None]]:
    """Put back what Ctrl-C did before, when called and at the end.

    PySpark sets a handler that talks to its Java machine in the midst of another talk, and leaves it there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGINT)

    def put_back() -> None:
        signal.signal(signal.SIGINT, before)

    try:
        yield put_back
    finally:
        put_back()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables while PySpark connects; the secret must not reach the children that are started later."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
