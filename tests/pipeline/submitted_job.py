"""A job file as a user of Spark writes one: ``spark-submit --py-files millstream.zip submitted_job.py STORE LOG DIR``.

It reads the log, appends what it read to the log ``copy``, follows it into the log ``streamed``, and prints what it
saw. DIR is a folder for the checkpoint and the staged parts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from millstream.core.clock import SystemClock
from millstream.pipeline.source import follow_log, read_log, write_log


def place_of(_: Iterator[Any]) -> Iterator[str]:
    """From where a task of an executor imports the package."""
    import millstream.pipeline.source

    yield str(millstream.pipeline.source.__file__)


if __name__ == "__main__":
    url, log, folder = sys.argv[1:4]
    staging = f"file://{folder}/staging"
    spark = SparkSession.builder.getOrCreate()
    rows = read_log(spark, url, log, first_id=101, partition_bytes=1).groupBy("source").count().collect()
    write_log(read_log(spark, url, log), url, "copy", staging=staging)
    stream = follow_log(spark, url, log, per_trigger=200).writeStream.format("millstream").option("store", url)
    stream = stream.option("log", "streamed").option("staging", staging).option("checkpointLocation", f"{folder}/check")
    stream.trigger(availableNow=True).start().awaitTermination()
    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(place_of).collect()
    found = {
        "counts": {row["source"]: row["count"] for row in rows},
        "places": sorted(set(places)),
        "written": [read_log(spark, url, name).count() for name in ("copy", "streamed")],
        "now": SystemClock().now(),
    }
    print(json.dumps(found))
    spark.stop()
