"""The process that Spark forks its Python workers from, with the heavy imports done before the first fork.

Each worker would otherwise import pyarrow, pandas and our own modules for itself: a second or more of processor time
and some 60 MB of memory for every one of them. Named in ``spark.python.daemon.module``.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import millstream.pipeline.jobs.feeding
import millstream.pipeline.jobs.fixity  # noqa: F401

if __name__ == "__main__":
    manager()
