"""Taking what a run has left out of a server, so that the next run has the server to itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from millstream.bench.log.contenders import log_peers

_PREFIXES = ("queue_", "blocks_", "bench_")


def _clear_mysql(url: str) -> None:
    from millstream.log.backends.mysql.address import parse_address
    from millstream.log.backends.mysql.pymysql_connection import connect_pymysql

    with contextlib.closing(connect_pymysql(parse_address(url))) as connection:
        for (table,) in connection.rows("SHOW TABLES"):
            if table.startswith(_PREFIXES):
                connection.execute(f"DROP TABLE `{table}`")


def _clear_postgres(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
            if table.startswith(_PREFIXES):
                connection.execute(f'DROP TABLE "{table}"'.encode())


_CLEARING: Mapping[str, Callable[[str], None]] = {
    "mariadb-whole": _clear_mysql,
    "postgresql-whole": _clear_postgres,
}


def clear(server: str, url: str) -> None:
    """Drop the tables, or the streams, of every run on *server* at *url*."""
    peers = log_peers()
    known = _CLEARING if peers is None else {**_CLEARING, **peers.CLEARING}
    if server in known:
        known[server](url)
