"""The request limit of a store for all tasks that run in parallel."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from millstream.pipeline.reachable import check_provider
from millstream.stores.throttled import shared_rate


def task_url(spark: SparkSession, url: str) -> str:
    """The URL of a store for a task of *spark*: of a rate of requests it has the share of one core.

    Raises :class:`PipelineInputError` where it names a folder that executors do not see.
    On a cluster the cores are those that have reported by now; one that comes later gets a share as large.
    """
    check_provider(spark, url)
    return shared_rate(url, spark.sparkContext.defaultParallelism)


def task_urls(spark: SparkSession, stores: Mapping[str, str]) -> dict[str, str]:
    """The URLs of *stores* (by id) for tasks."""
    return {name: task_url(spark, url) for name, url in stores.items()}
