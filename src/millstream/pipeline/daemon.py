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
    """Exclude imported objects from garbage collection, and collect rarely: a task makes many objects, and hardly any
    cycles.

    With Python's own thresholds it takes a tenth of the time of a task that packs batches.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def forget_archives() -> None:
    """Forget the importers of archives, so that the next import uses the file lists that zipimport has cached.

    Each new worker adds a folder of Spark to its path, which invalidates all importers. They would read the file list
    of PySpark's archive again for each package: 0.1 s of processor time and more.
    """
    finders = sys.path_importer_cache
    for path in [path for path, finder in finders.items() if isinstance(finder, zipimporter)]:
        del finders[path]


if __name__ == "__main__":
    main()
