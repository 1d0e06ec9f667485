"""Spark sessions of a node."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.core.cached import locked_cached_property
from millstream.node.context import NodeContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.session import SparkOptions


class SparkPart:
    """Starts Spark as the settings say."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def session(self) -> contextlib.AbstractContextManager[SparkSession]:
        """A Spark session for the jobs of :mod:`millstream.pipeline`, stopped when the block is left.

        Each job that ends from now on, as long as the node is open, leaves its line in ``jobs/jobs.jsonl``.
        """
        from millstream.pipeline.session import spark_session

        _ = self._job_lines
        return spark_session(self._context.folder / "spark", self.options, clock=self._context.clock)

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
    def _job_lines(self) -> object:
        """Keeps a line of each job; once is enough, however many sessions there are."""
        from millstream.pipeline.job_log import job_log_file

        return self._context.resources.enter_context(job_log_file(self._context.folder / "jobs" / "jobs.jsonl"))
