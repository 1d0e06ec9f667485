"""An application and its outbox, as tests of the relay have them: on SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import Log
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.relay import Outbox, OutboxDatabase, OutboxTable, Relay, open_outbox_database
from millstream.log.relay.sqlite_connection import SqliteAddress, connect_sqlite
from millstream.testing.databases import connect


def connect_application(url: str) -> DatabaseConnection:
    """A session of an application with the database at *url*."""
    if url.startswith("sqlite:"):
        return connect_sqlite(SqliteAddress(Path(url.removeprefix("sqlite:///"))))
    return connect(url)


def make_outbox(url: str) -> None:
    """Make the table ``outbox`` in the database at *url*."""
    with contextlib.closing(open_outbox_database(url, SystemClock())) as source:
        source.call(lambda connection: connection.execute(source.outbox_dialect.make_table(OutboxTable())))


def insert(application: DatabaseConnection, body: bytes) -> None:
    """Write a message, as an application does in its transaction."""
    application.execute("INSERT INTO outbox (body) VALUES (?)", body)


def count(application: DatabaseConnection) -> int:
    """How many rows are in the outbox."""
    ((rows,),) = application.rows("SELECT count(*) FROM outbox")
    return int(rows)


def relay_all(source: OutboxDatabase, log: Log, table: OutboxTable | None = None, **options: Any) -> Relay:
    """Move all that is there, by a relay that is new each time. For *options* see :class:`Outbox`."""
    outbox = Outbox(source, table or OutboxTable(), "orders", **options)
    relay = Relay(outbox, log, VirtualClock())
    for _ in relay.run():
        pass
    return relay


def bodies(log: Log) -> list[bytes]:
    """The bodies of all messages of *log*."""
    return [message.body for batch in log.read() for message in batch]
