"""The process that Spark forks its Python workers from, with the heavy imports done before the first fork.

Each worker would otherwise import pyarrow, pandas and our own modules for itself: a second or more of processor time
and some 60 MB of memory for every one of them. Named in ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
import sys
from zipimport import zipimporter

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import millstream.pipeline.tasks.shard_task
import millstream.pipeline.tasks.sweep_task  # noqa: F401


def main() -> None:
    """Serve until Spark closes the standard input."""
    forget_archives()
    collect_seldom()
    manager()


def collect_seldom() -> None:
    """Have the collector leave alone what is imported, and run seldom: a task makes many objects, and hardly a cycle.

    With Python's own thresholds it takes a tenth of the time of a task that packs batches.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def forget_archives() -> None:
    """Forget who has looked into archives so far; who looks again finds what is known of them.

    Each new worker gets a folder of Spark's into its path, and has all that looked anywhere look again. For each
    package in PySpark's own archive that is the whole list of its files, read anew: 0.1 s of processor time and more.
    """
    finders = sys.path_importer_cache
    for path in [path for path, finder in finders.items() if isinstance(finder, zipimporter)]:
        del finders[path]


if __name__ == "__main__":
    main()
