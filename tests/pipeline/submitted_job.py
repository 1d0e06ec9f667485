"""A job file as a user of Spark writes one: ``spark-submit --py-files millstream.zip submitted_job.py STORE LOG``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from millstream.core.clock import SystemClock
from millstream.pipeline.source import read_log, register


def place_of(_: Iterator[Any]) -> Iterator[str]:
    """From where a task of an executor imports the package."""
    import millstream.pipeline.source

    yield str(millstream.pipeline.source.__file__)


if __name__ == "__main__":
    url, log = sys.argv[1:3]
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = read_log(spark, url, log, first_id=101, partition_bytes=1).groupBy("source").count().collect()
    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(place_of).collect()
    counts = {row["source"]: row["count"] for row in rows}
    print(json.dumps({"counts": counts, "places": sorted(set(places)), "now": SystemClock().now()}))
    spark.stop()
