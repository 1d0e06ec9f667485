"""Logs in MariaDB or MySQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

from millstream.core.clock import Clock
from millstream.log.backend import Commit, producer_key
from millstream.log.backends.database.backend import DatabaseBackend, block_values
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver, Value
from millstream.log.backends.database.error_codes import ErrorCodes
from millstream.log.backends.database.pool import RETRY_SECONDS, PooledConnection
from millstream.log.backends.database.statements import Statements
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.backends.mysql.error_codes import MYSQL_ERRORS
from millstream.log.backends.mysql.server import read_durability
from millstream.log.backends.mysql.statements import sql
from millstream.log.block_header import EncodedBlock

_STATEMENT_BYTES = 4096  # what a statement takes beside the blocks in it


class MysqlDialect:
    """The dialect of MariaDB and MySQL."""

    @property
    def error_codes(self) -> ErrorCodes:
        return MYSQL_ERRORS

    def begin_session(self, connection: DatabaseConnection, *, read_only: bool) -> int:
        """Make a new connection ready; a statement has no more bytes than a packet of the server."""
        connection.execute(sql.SESSION)
        if read_only:
            connection.execute(sql.SESSION_READ_ONLY)
        ((packet_bytes,),) = connection.rows(sql.PACKET_BYTES)
        return int(packet_bytes)

    def make_database(self, connection: DatabaseConnection, database: str) -> None:
        """Make *database* where it is absent."""
        connection.execute(sql.CREATE_DATABASE.format(database))


class MysqlBackend(DatabaseBackend[MysqlAddress]):
    """A backend in a database of MariaDB or MySQL. Without a *driver* the place's own is taken."""

    sql: ClassVar[type[Statements]] = sql

    def __init__(
        self,
        address: MysqlAddress,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = RETRY_SECONDS,
        driver: DatabaseDriver[MysqlAddress] | None = None,
    ) -> None:
        driver = driver or choose_driver(address)
        super().__init__(address, clock, MysqlDialect(), driver, create=create, read_only=read_only, patience=patience)

    def _durability(self, connection: DatabaseConnection) -> str:
        return read_durability(connection)

    def _store(self, pooled: PooledConnection, table: str, log: str, commit: Commit) -> bool:
        connection = pooled.connection
        connection.execute(sql.BEGIN)
        move = (commit.last_id, commit.received_at, log, commit.epoch, commit.previous_id)
        if connection.execute(sql.MOVE_POINTER, *move) != 1:
            connection.execute(sql.ROLLBACK)
            return False
        for rows in _packets(commit.blocks, pooled.statement_bytes):
            _insert(connection, table, rows)
        if commit.sequence is not None:
            key, sequence = producer_key(commit.producer).encode(), str(commit.sequence).encode()
            connection.execute(sql.SET_STATE, log, key, sequence)
        connection.execute(sql.COMMIT)
        return True


def _insert(connection: DatabaseConnection, table: str, rows: Sequence[Sequence[Value]]) -> None:
    statement = sql.INSERT_BLOCKS.format(table) + ", ".join([sql.BLOCK_ROW] * len(rows))
    connection.execute(statement, *itertools.chain.from_iterable(rows))


def _packets(blocks: Sequence[EncodedBlock], packet_bytes: int) -> Iterator[list[Sequence[Value]]]:
    """The rows of *blocks*, as many together as one packet holds even if every byte of them is escaped."""
    room = max((packet_bytes - _STATEMENT_BYTES) // 2, 256)
    packet: list[Sequence[Value]] = []
    size = 0
    for row in itertools.chain.from_iterable(_parts(block, room - 256) for block in blocks):
        taken = len(row[-1]) + 256  # type: ignore[arg-type]
        if packet and size + taken > room:
            yield packet
            packet, size = [], 0
        packet.append(row)
        size += taken
    if packet:
        yield packet


def _parts(block: EncodedBlock, part_bytes: int) -> Iterator[Sequence[Value]]:
    """The rows of *block*: one, or more where it is larger than *part_bytes*."""
    head, values = block.header, block_values(block)
    for part, start in enumerate(range(0, len(block.data), part_bytes)):
        data = block.data[start : start + part_bytes]
        yield (head.first_id, part, head.last_id, head.epoch, *values, data)
