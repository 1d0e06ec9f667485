"""The driver of MariaDB and MySQL: PyMySQL."""

from __future__ import annotations

import importlib.util

from millstream.log.backends.database.driver import DatabaseDriver
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.errors import StorageError


def choose_driver(address: MysqlAddress) -> DatabaseDriver[MysqlAddress]:
    """The driver for *address*. Raises :class:`StorageError` where it is not installed."""
    if importlib.util.find_spec("pymysql") is None:
        raise StorageError(f"{address.url} needs PyMySQL, which is not installed: run pip install 'millstream[mysql]'")
    from millstream.log.backends.mysql.pymysql_connection import connect_pymysql

    return connect_pymysql
