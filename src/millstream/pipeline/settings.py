"""The section ``pipeline`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section

RESULTS_SETTING = "spark.millstream.results"
"""The setting of a Spark session with the URL of the storage provider for results; without it they go to folders."""


class PipelineSettings(Section, frozen=True):
    """Spark. ``driver_memory`` is the Java heap; ``java`` is a Java home (empty: the first Java 17 or newer of
    ``JAVA_HOME``, the ``PATH``, and the runtime that ``millstream[pipeline]`` installs).

    ``quick`` limits Java to its fast compiler: this halves the start time, but slows down jobs that run for hours.
    Each job deletes the results of jobs that were not used for ``keep_jobs``. ``confs`` are Spark settings by name
    (``"spark.executor.memory" = "4g"``); they override those of Millstream. ``results`` is the location of job results:
    a folder that all hosts of a cluster mount at this path (empty: ``jobs`` of the data folder), or the URL of a
    storage provider (``s3://bucket/prefix``) that all hosts reach.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    java: str = ""
    quick: bool = True
    confs: Mapping[str, str] = msgspec.field(default_factory=dict)
    results: str = ""
    keep_jobs: Duration = Duration(30 * 24 * 3600 * MICROSECONDS)

    @property
    def results_at_url(self) -> bool:
        """Whether ``results`` names a storage provider."""
        return "://" in self.results
