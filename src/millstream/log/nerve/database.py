"""The database of queues in the document's layout, and which tables each queue has in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from millstream.core.clock import Clock
from millstream.log.database.driver import Driver, Value
from millstream.log.database.pool import Lent, Pool
from millstream.log.database.statements import Statements
from millstream.log.errors import LogError, LogInputError, LogNotFoundError
from millstream.log.mysql.backend import MysqlDialect
from millstream.log.mysql.driver import choose_driver
from millstream.log.mysql.place import Place
from millstream.log.nerve import statements as sql
from millstream.log.nerve.place import NervePlace
from millstream.log.nerve.tables import Found, Tables, choose_tables, find_queues, new_tables
from millstream.log.spec import LogSpec

Result = TypeVar("Result")


class Database:
    """The connections to *place*. The side tables, which the original does not know, are made by who may write."""

    def __init__(
        self,
        place: NervePlace,
        clock: Clock,
        *,
        create: bool,
        read_only: bool,
        patience: float,
        driver: Driver[Place] | None,
    ) -> None:
        self.place = place
        chosen = driver or choose_driver(place.database)
        self.pool = Pool(place.database, clock, MysqlDialect(), chosen, read_only=read_only, patience=patience)
        self._read_only = read_only
        self._tables: dict[str, Tables] = {}
        try:
            if create and not read_only:
                self.pool.make_database()
            self.has_side_tables = self._find_side_tables()
        except BaseException:
            self.pool.close()
            raise

    def queues(self) -> Mapping[str, Found]:
        """The queues of which there are tables."""
        names = [str(name) for (name,) in self.rows(sql.TABLE_NAMES)]
        return {queue: found for queue, found in find_queues(names).items() if _can_be_named(queue)}

    def tables(self, queue: str) -> Tables:
        """The tables of *queue*. Raises :class:`LogNotFoundError`, :class:`LogInputError` where counts do not fit."""
        if queue not in self._tables:
            found = choose_tables(self.place, queue, self.queues().get(queue))
            if found is None:
                raise LogNotFoundError(
                    f"there is no queue {queue!r} in {self.place.url}; `millstream log ls --store URL` lists what is "
                    "there"
                )
            self._tables[queue] = found
        return self._tables[queue]

    def create(self, queue: str) -> None:
        """Make the tables of *queue* that are absent, the side tables as well."""
        tables = choose_tables(self.place, queue, self.queues().get(queue)) or new_tables(self.place, queue)
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
        return tuple(self.pool.call(lambda lent: lent.connection.rows(statement, *values)))

    def execute(self, statement: str, *values: Value) -> int:
        """Do *statement*; the number of rows that it found or made."""
        return self.pool.call(lambda lent: lent.connection.execute(statement, *values))

    def transaction(self, work: Callable[[Lent, bool], Result]) -> Result:
        """What *work* returns, all of it done or nothing; it is told whether an earlier try may have been done."""
        tries = 0

        def attempt(lent: Lent) -> Result:
            nonlocal tries
            tries += 1
            return _in_transaction(lent, lambda: work(lent, tries > 1))

        return self.pool.call(attempt)

    def _find_side_tables(self) -> bool:
        names = self.pool.once(lambda lent: lent.connection.rows(sql.TABLE_NAMES))
        return set(sql.SIDE_TABLES) <= {str(name) for (name,) in names}


def _in_transaction(lent: Lent, work: Callable[[], Result]) -> Result:
    lent.connection.execute(Statements.BEGIN)
    try:
        result = work()
    except LogError:
        lent.connection.execute(Statements.ROLLBACK)
        raise
    lent.connection.execute(Statements.COMMIT)
    return result


def _can_be_named(queue: str) -> bool:
    try:
        LogSpec(queue)
    except LogInputError:
        return False
    return True
