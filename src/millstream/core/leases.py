"""Leases in a table: rights of one holder at a time, until a time of the database's clock, with their epochs.

The epoch grows with every new holder. A holder with an older epoch has lost the right, perhaps without noticing:
:meth:`Leases.require` raises within the transaction of its write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import WHOLE_NUMBER, exact_text
from millstream.core.errors import MillstreamError
from millstream.core.sql import SqlDatabase
from millstream.core.sql_rows import insert_new

Column = Callable[[int], int | None]
"""The value of a column, computed of the present time."""


class Lease(msgspec.Struct, frozen=True):
    """The right *name*, held under *epoch*."""

    name: str
    epoch: int


class LeaseLostError(MillstreamError):
    """Another process holds the lease now: nothing was written."""


def lease_table(
    name: str, metadata: sa.MetaData, key: str, key_type: sa.types.TypeEngine[str], *columns: sa.Column[int]
) -> sa.Table:
    """A table of leases, whose names are in the column *key*; further *columns* are 0 if a lease was never held."""
    return sa.Table(
        name,
        metadata,
        sa.Column(key, key_type, primary_key=True),
        sa.Column("holder", exact_text(64), nullable=False),
        sa.Column("epoch", WHOLE_NUMBER, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        *columns,
    )


class Leases:
    """The leases in *table* (:func:`lease_table`) of *database*, each for so many *seconds*, as *holder*. Thread-safe.

    *holder* is a name that no other process ever had.
    """

    def __init__(self, database: SqlDatabase, table: sa.Table, holder: str, seconds: float) -> None:
        self._database, self._table = database, table
        self._key = next(iter(table.primary_key.columns))
        self._holder, self._duration = holder, int(seconds * 1_000_000)

    def acquire(
        self, name: str, *, allowed: Callable[[int, sa.Row[Any]], bool] = lambda *_: True, **values: Column
    ) -> Lease | None:
        """The lease *name*, unless another holder has it, or *allowed* (present time, row) says no.

        *values* are written into further columns of the table.
        """
        table, named = self._table, self._key == name

        def is_refused(connection: sa.Connection, now: int) -> bool:
            row = connection.execute(sa.select(table).where(named)).one_or_none()
            return row is not None and (row.until > now or not allowed(now, row))

        fresh = {column.name: 0 for column in table.columns} | {self._key.name: name, "holder": ""}
        change = dict[str, Any]()  # what this call wrote: it was committed if only the reply was lost

        def transaction(connection: sa.Connection, now: int) -> Lease | None:
            connection.execute(insert_new(connection, table), fresh)
            row = connection.execute(sa.select(table).where(named).with_for_update()).one()
            if row.until > now:
                return Lease(name, row.epoch) if change and change.items() <= row._asdict().items() else None
            if not allowed(now, row):
                return None
            change.update(holder=self._holder, epoch=row.epoch + 1, until=now + self._duration)
            connection.execute(sa.update(table).where(named).values({**change, **_at(now, values)}))
            return Lease(name, row.epoch + 1)

        # Most who ask have asked in vain: without a lock.
        return None if self._database.read(is_refused) else self._database.write(transaction)

    def renew(self, names: Iterable[str]) -> None:
        """Prolong those of the leases *names* that are held here. Call it more often than a lease lasts."""
        if names := sorted(names):
            self._database.write(lambda connection, now: self.renew_in(connection, now, names))

    def renew_in(self, connection: sa.Connection, now: int, names: Iterable[str]) -> None:
        """:meth:`renew` as a part of the transaction of *connection*. A lease that was released stays so."""
        table = self._table
        mine = sa.and_(table.c.holder == self._holder, table.c.until > 0, self._key.in_(sorted(names)))
        connection.execute(sa.update(self._table).where(mine).values(until=now + self._duration))

    def release(self, lease: Lease, **values: Column) -> None:
        """End *lease* now, and write *values*; nothing is written where another holder has come since."""
        self.write(lease, until=lambda _: 0, **values)

    def write(self, lease: Lease, **values: Column) -> None:
        """Write *values* into columns of *lease*; nothing is written where another holder has come since."""
        mine = sa.update(self._table).where(self._key == lease.name, self._table.c.epoch == lease.epoch)
        self._database.write(lambda connection, now: connection.execute(mine.values(_at(now, values))))

    def require(self, connection: sa.Connection, lease: Lease) -> None:
        """Raise :class:`LeaseLostError` unless *lease* is still held, as the transaction of *connection* sees it."""
        held = sa.select(self._table.c.epoch).where(self._key == lease.name, self._table.c.holder == self._holder)
        if connection.scalar(held) != lease.epoch:
            raise LeaseLostError(f"another process holds the lease of {lease.name!r}: nothing was written")


def _at(now: int, values: Mapping[str, Column]) -> Mapping[str, int | None]:
    return {name: value(now) for name, value in values.items()}
