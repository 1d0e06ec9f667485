"""Copies the log ``in`` to ``out`` by a stream of a plain Spark session: ``copy_stream.py STORE FOLDER TRIGGER LAST``.

TRIGGER is ``continuous`` or ``available-now``: then one run follows the other. It ends when ``out`` has LAST messages.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millstream.log import LogSpec, open_store
from millstream.pipeline.source import follow_log, register

PER_TRIGGER = 150


def last_id(url: str) -> int:
    with open_store(url) as store:
        return store.log(LogSpec("out")).last_id


def start(spark: SparkSession, url: str, folder: str, *, available_now: bool) -> StreamingQuery:
    stream = follow_log(spark, url, "in", per_trigger=PER_TRIGGER).writeStream.format("millstream")
    stream = stream.option("store", url).option("log", "out").option("staging", f"file://{folder}/staging")
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint")
    stream = stream.trigger(availableNow=True) if available_now else stream.trigger(processingTime="0 seconds")
    return stream.start()


def main(url: str, folder: str, trigger: str, last: int) -> None:
    """Run the stream until all *last* messages are there."""
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
    register(spark)
    while last_id(url) < last:
        query = start(spark, url, folder, available_now=trigger == "available-now")
        while not query.awaitTermination(timeout=1):
            if last_id(url) >= last:
                query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
