"""Vacuuming the database of a node in its folder."""

from __future__ import annotations

import contextlib

from millstream.core.sqlite_file import explained, open_database
from millstream.core.sqlite_vacuum import FileSizes, vacuum
from millstream.node.context import DATABASE
from millstream.node.databases import TABLES
from millstream.node.errors import NodeNotFoundError
from millstream.settings import Settings


def vacuum_database(settings: Settings) -> FileSizes:
    """Vacuum the file ``node.db`` of the node of *settings*.

    Raises :class:`NodeNotFoundError` where there is none, and what :func:`~millstream.core.sqlite_vacuum.vacuum` does.
    """
    path = settings.folder / DATABASE
    if settings.node.database or not path.exists():
        raise NodeNotFoundError(
            f"the node in {settings.folder} has no file {DATABASE}: check --data; a database on a server "
            "(node.database) is vacuumed by its administrator (VACUUM FULL, or OPTIMIZE TABLE)"
        )
    engine = open_database(path, TABLES)
    try:
        with explained(path), contextlib.closing(engine.raw_connection()) as connection:
            assert connection.driver_connection is not None
            return vacuum(connection.driver_connection, path)
    finally:
        engine.dispose()
