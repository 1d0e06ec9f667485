"""Data sources made known to a Spark session, so that every Python process of Spark finds the package.

Spark hands the archives of ``--py-files`` to its workers and planners, but not to the process that plans the triggers
of a stream. That process gets the environment that the data source was registered with.
"""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary
from zipimport import zipimporter

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import millstream

_PATH = "PYTHONPATH"

_known: WeakKeyDictionary[SparkSession, set[type[DataSource]]] = WeakKeyDictionary()
"""What each session has; Spark logs a warning where a data source is registered again."""


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register *source* once with *spark*, the object of a session.

    Where the package lies in an archive, the processes of Spark find it there.
    """
    known = _known.setdefault(spark, set())
    if source not in known:
        _register(spark, source)
        known.add(source)


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    archive, environment = package_archive(), spark.sparkContext.environment
    if archive is None:
        spark.dataSource.register(source)
        return
    before = environment.get(_PATH)
    environment[_PATH] = os.pathsep.join([archive, before] if before else [archive])
    try:
        spark.dataSource.register(source)
    finally:  # functions of the user run in the environment that they had
        if before is None:
            del environment[_PATH]
        else:
            environment[_PATH] = before


def package_archive() -> str | None:
    """The ZIP archive that this process imports the package from; None where it is installed."""
    loader = millstream.__spec__.loader if millstream.__spec__ else None
    return loader.archive if isinstance(loader, zipimporter) else None
