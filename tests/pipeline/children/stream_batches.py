"""Runs the stream job of a plan (JSON) in a Spark session of its own, until it has taken what is there."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream
from millstream.pipeline.session import SparkOptions, spark_session

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    plan = msgspec.json.decode(sys.argv[2], type=StreamPlan, dec_hook=lambda _, text: Path(text))
    with spark_session(folder / "work", SparkOptions(master="local[2]")) as spark:
        run_stream(spark, plan, available_now=True)
