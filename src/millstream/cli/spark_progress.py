"""A progress bar of a Spark job: finished tasks of the running stages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millstream.cli.common import is_terminal
from millstream.cli.progress import drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY = 0.25
"""Seconds between looks."""


@contextlib.contextmanager
def shown(spark: SparkSession, job: str) -> Iterator[None]:
    """Show the finished tasks of *job* during the block, on a terminal only."""
    if not is_terminal():
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    ended = threading.Event()
    with drawn(*columns) as progress:
        watching = threading.Thread(target=_watch, args=(spark, progress, job, ended), name="spark-progress")
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()


def _watch(spark: SparkSession, progress: Progress, job: str, ended: threading.Event) -> None:
    from py4j.protocol import Py4JError

    bar = progress.add_task(job, total=None)
    with contextlib.suppress(Py4JError, OSError):  # a session that ends meanwhile is told of by the job itself
        while not ended.wait(_EVERY):
            done, total = tasks_done(spark)
            if total:
                progress.update(bar, completed=done, total=total)


def tasks_done(spark: SparkSession) -> tuple[int, int]:
    """The numbers of finished tasks and of all tasks of the running stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)
