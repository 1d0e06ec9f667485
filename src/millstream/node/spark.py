"""Spark sessions of a node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.core.cached import locked_cached_property
from millstream.core.clock import SystemClock
from millstream.node.context import NodeContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.session import SparkOptions


class SparkPart:
    """Starts Spark as the settings say."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def session(self, *, registered: bool = True) -> contextlib.AbstractContextManager[SparkSession]:
        """A Spark session for the jobs of :mod:`millstream.pipeline`, stopped when the block is left.

        It starts sooner unless the data source is to be *registered*: functions that read or write a log register it.

        Each job that ends from now on, as long as the node is open, leaves its line in ``jobs/jobs.jsonl``. After a
        block without an error, closing the node removes the jobs that were not used for ``pipeline.keep_jobs``.
        """
        _ = self._job_lines
        return self._session(registered=registered)

    @contextlib.contextmanager
    def _session(self, *, registered: bool) -> Iterator[SparkSession]:
        from millstream.pipeline.session import spark_session

        folder, clock = self._context.folder / "spark", self._context.clock
        with spark_session(folder, self.options, registered=registered, clock=clock) as spark:
            yield spark
        _ = self._removal_of_old_jobs

    @property
    def options(self) -> SparkOptions:
        """How the settings want Spark to run."""
        from millstream.pipeline.session import SparkOptions

        pipeline = self._context.settings.pipeline
        memory, java, confs = pipeline.driver_memory, pipeline.java, pipeline.confs
        url = pipeline.results if pipeline.results_at_url else ""
        return SparkOptions(pipeline.master, memory, java, quick=pipeline.quick, confs=confs, results=url)

    @property
    def jobs(self) -> Path:
        """The folder of the jobs: their records, and their results where those do not go to a URL."""
        pipeline = self._context.settings.pipeline
        elsewhere = pipeline.results and not pipeline.results_at_url
        return Path(pipeline.results).absolute() if elsewhere else self._context.folder / "jobs"

    @locked_cached_property
    def _removal_of_old_jobs(self) -> object:
        """Removes old jobs when the node is closed, not before: results of long jobs may still be read until then."""
        return self._context.resources.callback(self._remove_old_jobs)

    def _remove_old_jobs(self) -> None:
        from millstream.pipeline.output.job_folder import remove_old_jobs

        # The times of files are of the clock of the system, whatever clock the node has.
        remove_old_jobs(self.jobs, before=SystemClock().now() - self._context.settings.pipeline.keep_jobs)

    @locked_cached_property
    def _job_lines(self) -> object:
        """Keeps a line of each job; once is enough, however many sessions there are."""
        from millstream.pipeline.job_log import job_log_file

        return self._context.resources.enter_context(job_log_file(self._context.folder / "jobs" / "jobs.jsonl"))
