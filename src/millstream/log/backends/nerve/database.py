"""The database of queues in the nerve layout, and which tables each queue has in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from millstream.core.clock import Clock
from millstream.log.backends.database.driver import DatabaseDriver, Value
from millstream.log.backends.database.pool import ConnectionPool, PooledConnection
from millstream.log.backends.database.statements import Statements
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.backends.mysql.backend import MysqlDialect
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.backends.nerve import statements as sql
from millstream.log.backends.nerve.address import NerveAddress
from millstream.log.backends.nerve.tables import FoundTables, QueueTables, choose_tables, find_queues, new_tables
from millstream.log.errors import LogError, LogInputError, LogNotFoundError
from millstream.log.spec import LogSpec

Result = TypeVar("Result")


class NerveDatabase:
    """The connections to *address*. The side tables, which the original does not know, are made by who may write."""

    def __init__(
        self,
        address: NerveAddress,
        clock: Clock,
        *,
        create: bool,
        read_only: bool,
        patience: float,
        driver: DatabaseDriver[MysqlAddress] | None,
    ) -> None:
        self.address = address
        chosen = driver or choose_driver(address.database)
        self.pool = ConnectionPool(
            address.database, clock, MysqlDialect(), chosen, read_only=read_only, patience=patience
        )
        self._read_only = read_only
        self._tables: dict[str, QueueTables] = {}
        try:
            if create and not read_only:
                self.pool.make_database()
            self.has_side_tables = self._find_side_tables()
        except BaseException:
            self.pool.close()
            raise

    def queues(self) -> Mapping[str, FoundTables]:
        """The queues of which there are tables."""
        names = [str(name) for (name,) in self.rows(sql.TABLE_NAMES)]
        return {queue: found for queue, found in find_queues(names).items() if _can_be_named(queue)}

    def tables(self, queue: str) -> QueueTables:
        """The tables of *queue*. Raises :class:`LogNotFoundError`, :class:`LogInputError` where counts do not fit."""
        if queue not in self._tables:
            found = choose_tables(self.address, queue, self.queues().get(queue))
            if found is None:
                raise LogNotFoundError(
                    f"unknown queue {queue!r} in {self.address.url}; `millstream log list --store URL` lists its logs"
                )
            self._tables[queue] = found
        return self._tables[queue]

    def create(self, queue: str) -> None:
        """Make the tables of *queue* that are absent, the side tables as well."""
        tables = choose_tables(self.address, queue, self.queues().get(queue)) or new_tables(self.address, queue)
        for number in range(tables.pointers):
            self.execute(sql.CREATE_POINTERS.format(tables.pointer_table(number)))
        for shard in range(tables.shards):  # after the pointers: rows without pointers would look like damage
            self.execute(sql.CREATE_ROWS.format(tables.rows(shard)))
        self.make_side_tables()
        self._tables[queue] = tables

    def make_side_tables(self) -> None:
        """Make what only we use, if it is absent and may be made."""
        if not self.has_side_tables:
            for statement in sql.SIDE_SCHEMA:
                self.execute(statement)
            self.has_side_tables = True

    def rows(self, statement: str, *values: Value) -> tuple[tuple[Any, ...], ...]:
        """The rows of *statement*."""
        return tuple(self.pool.call(lambda pooled: pooled.connection.rows(statement, *values)))

    def execute(self, statement: str, *values: Value) -> int:
        """Do *statement*; the number of rows that it found or made."""
        return self.pool.call(lambda pooled: pooled.connection.execute(statement, *values))

    def transaction(self, work: Callable[[PooledConnection, bool], Result]) -> Result:
        """The result of *work*, done completely or not at all; its argument is whether an earlier attempt may have
        succeeded. What that has stored may be seen and not be durable: then this transaction changes something as well,
        so that the server flushes both.
        """
        tries = 0

        def attempt(pooled: PooledConnection) -> Result:
            nonlocal tries
            tries += 1
            return _in_transaction(pooled, lambda: again(pooled) if tries > 1 else work(pooled, False))

        def again(pooled: PooledConnection) -> Result:
            result = work(pooled, True)
            if self.has_side_tables:
                pooled.connection.execute(sql.SET_STATE, "", 0, Statements.SETTLED, b"")
            return result

        return self.pool.call(attempt)

    def _find_side_tables(self) -> bool:
        names = self.pool.once(lambda pooled: pooled.connection.rows(sql.TABLE_NAMES))
        return set(sql.SIDE_TABLES) <= {str(name) for (name,) in names}


def _in_transaction(pooled: PooledConnection, work: Callable[[], Result]) -> Result:
    pooled.connection.execute(Statements.BEGIN)
    try:
        result = work()
    except LogError:
        pooled.connection.execute(Statements.ROLLBACK)
        raise
    pooled.connection.execute(Statements.COMMIT)
    return result


def _can_be_named(queue: str) -> bool:
    try:
        LogSpec(queue)
    except LogInputError:
        return False
    return True
