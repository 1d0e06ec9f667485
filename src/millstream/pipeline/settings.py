"""The section ``pipeline`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section


class PipelineSettings(Section, frozen=True):
    """Spark. ``driver_memory`` is the Java heap; ``java`` names a Java home and is found by itself when empty.

    ``quick`` keeps Java to its fast compiler: half the start-up, right for jobs of minutes, wrong for jobs of hours.
    What jobs leave in the folder ``jobs`` is kept for ``keep_jobs`` after it was last used. ``confs`` are settings of
    Spark by their names (``"spark.executor.memory" = "4g"``), and win over ours. ``results`` is where jobs keep their
    results: a folder that all hosts of a cluster mount at this path (empty: ``jobs`` of the data folder), or the URL of
    a storage provider (``s3://bucket/prefix``) that all hosts reach.
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
