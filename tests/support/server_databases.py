"""Databases of their own for tests, on the servers that the tests share."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

from millstream.core.database_server import open_server

_names = itertools.count(1)


@contextlib.contextmanager
def new_database(server: str, prefix: str) -> Iterator[str]:
    """The URL of a database on *server* (a URL without a database) that did not exist; removed at the end."""
    name = f"{prefix}_{os.getpid()}_{next(_names)}"
    try:
        yield server + name
    finally:
        is_postgresql = server.startswith("postgresql")
        engine = open_server(server + ("postgres" if is_postgresql else "mysql"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            force = " WITH (FORCE)" if is_postgresql else ""
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}{force}")
        engine.dispose()
