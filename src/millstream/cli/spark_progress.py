"""A progress bar over a Spark job: tasks that are done, of the stages that run."""

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
    """Show how far the tasks of *job* are while the block runs, on a terminal; elsewhere nothing."""
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
    """How many tasks of the stages that run now are done, and how many there are."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)
