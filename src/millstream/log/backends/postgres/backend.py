"""Logs in PostgreSQL: a commit is one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from millstream.core.clock import Clock
from millstream.log.backend import Commit, producer_key
from millstream.log.backends.database.backend import DatabaseBackend, block_values
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver, ServerError, Value
from millstream.log.backends.database.error_codes import ErrorCodes
from millstream.log.backends.database.pool import RETRY_SECONDS, PooledConnection
from millstream.log.backends.database.statements import Statements
from millstream.log.backends.postgres.address import PostgresAddress
from millstream.log.backends.postgres.driver import choose_driver
from millstream.log.backends.postgres.error_codes import DUPLICATE_DATABASE, POSTGRES_ERRORS, UNIQUE_VIOLATION
from millstream.log.backends.postgres.server import read_durability
from millstream.log.backends.postgres.statements import sql
from millstream.log.block_header import EncodedBlock

STATEMENT_BYTES = 32 << 20
"""About how much one statement takes; the server and libpq refuse a gibibyte."""

_MOST_ROWS = 500  # blocks in a statement, of nine values each; 65,535 values are the protocol's limit


class PostgresDialect:
    """The dialect of PostgreSQL."""

    @property
    def error_codes(self) -> ErrorCodes:
        return POSTGRES_ERRORS

    def begin_session(self, connection: DatabaseConnection, *, read_only: bool) -> int:
        """Make a new connection ready."""
        connection.rows(sql.SESSION, "on" if read_only else "off")
        return STATEMENT_BYTES

    def make_database(self, connection: DatabaseConnection, database: str) -> None:
        """Make *database* where it is absent; of several processes that do so at once, one does."""
        try:
            connection.execute(sql.CREATE_DATABASE.format(database))
        except ServerError as error:
            if error.code not in {DUPLICATE_DATABASE, UNIQUE_VIOLATION}:
                raise


class PostgresBackend(DatabaseBackend[PostgresAddress]):
    """A backend in a database of PostgreSQL."""

    sql: ClassVar[type[Statements]] = sql

    def __init__(
        self,
        address: PostgresAddress,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = RETRY_SECONDS,
        driver: DatabaseDriver[PostgresAddress] | None = None,
    ) -> None:
        driver = driver or choose_driver(address)
        super().__init__(
            address, clock, PostgresDialect(), driver, create=create, read_only=read_only, patience=patience
        )

    def _durability(self, connection: DatabaseConnection) -> str:
        return read_durability(connection)

    def _store(self, pooled: PooledConnection, table: str, log: str, commit: Commit) -> bool:
        """One statement, which the server does or does not; where the blocks are too large for one, a transaction."""
        connection = pooled.connection
        first, *more = _portions(commit.blocks, pooled.statement_bytes)
        if more:
            connection.execute(sql.BEGIN)
        moved = _move(connection, table, log, commit, first)
        if more:
            for portion in more if moved else ():
                connection.execute(sql.INSERT_BLOCKS.format(table, _places(portion)), *_values(portion))
            connection.execute(sql.COMMIT if moved else sql.ROLLBACK)
        return moved


def _move(connection: DatabaseConnection, table: str, log: str, commit: Commit, blocks: Sequence[EncodedBlock]) -> bool:
    """Move the pointer and add *blocks*, if epoch and pointer are those that *commit* states."""
    parts = [sql.MOVED, sql.STORED.format(table, _places(blocks))] if blocks else [sql.MOVED]
    values: list[Value] = [commit.last_id, commit.received_at, log, commit.epoch, commit.previous_id, *_values(blocks)]
    if commit.sequence is not None:
        parts.append(sql.NOTED)
        values += [log, producer_key(commit.producer).encode(), str(commit.sequence).encode()]
    ((moved,),) = connection.rows("".join([*parts, sql.WHETHER_MOVED]), *values)
    return bool(moved)


def _portions(blocks: Sequence[EncodedBlock], statement_bytes: int) -> Iterator[list[EncodedBlock]]:
    """*blocks* as they go together in a statement: at least one each."""
    portion: list[EncodedBlock] = []
    size = 0
    for block in blocks:
        if portion and (size + len(block.data) > statement_bytes or len(portion) == _MOST_ROWS):
            yield portion
            portion, size = [], 0
        portion.append(block)
        size += len(block.data)
    yield portion


def _places(blocks: Sequence[EncodedBlock]) -> str:
    return ", ".join([sql.BLOCK_ROW] * len(blocks))


def _values(blocks: Sequence[EncodedBlock]) -> Iterator[Value]:
    for block in blocks:
        head = block.header
        yield from (head.first_id, head.last_id, head.epoch, *block_values(block))
        yield block.data
