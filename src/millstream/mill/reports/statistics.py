"""Storage statistics: items and bytes of each space over time, as the manifest has them (reference mill §1.10)."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS
from millstream.core.column_types import NAME
from millstream.core.sql import make_tables_once, writing
from millstream.core.sql_rows import put_row
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.manifest import Manifest
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import StorageStatistics

metadata = sa.MetaData()

_statistics = sa.Table(
    "mill_statistics",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("at", sa.BigInteger, primary_key=True),
    sa.Column("items", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


class StatisticsPeriod(enum.IntEnum):
    """Over how long figures are averaged, in seconds."""

    DAY = 24 * 3600
    WEEK = 7 * 24 * 3600


class SpaceSize(msgspec.Struct, frozen=True):
    """How much a space of a store held at ``at`` (microseconds since the epoch, UTC); averages are rounded down."""

    store: str
    space: str
    at: int
    items: int
    bytes: int


class StoreSize(msgspec.Struct, frozen=True):
    """How much a store held when its spaces were last counted, and the ``most_bytes`` that it may hold."""

    store: str
    items: int
    bytes: int
    most_bytes: int

    @property
    def share(self) -> float:
        """Of what it may hold; 1 is all of it."""
        return self.bytes / self.most_bytes

    @property
    def over(self) -> bool:
        """Whether it holds more than it may."""
        return self.bytes > self.most_bytes


def store_sizes(sizes: Iterable[SpaceSize], limits: Mapping[str, int]) -> Sequence[StoreSize]:
    """The sizes of the stores that *limits* (bytes by store, 0 for none) names, those that are over theirs first."""
    items, size = Counter[str](), Counter[str]()
    for one in sizes:
        items[one.store] += one.items
        size[one.store] += one.bytes
    found = [StoreSize(store, items[store], size[store], most) for store, most in limits.items() if most]
    return sorted(found, key=lambda store: (not store.over, store.store))


class SpaceStatisticsTable:
    """The sizes of spaces in the database of *engine*; the table is made where it is absent. Thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        make_tables_once(engine, metadata)

    def add(self, size: SpaceSize) -> None:
        """Keep *size*; durable when this returns."""
        with writing(self._engine) as connection:
            put_row(connection, _statistics, msgspec.structs.asdict(size))

    def latest(self, store: str | None = None, *, until: int | None = None) -> Sequence[SpaceSize]:
        """The last size of every space, of one *store* or of all, sorted.

        With *until* (microseconds) the last one at that time: a clock that was ahead once leaves sizes of the future.
        """
        row = _statistics.c
        newest = sa.select(row.store, row.space, sa.func.max(row.at).label("at")).group_by(row.store, row.space)
        newest = newest if until is None else newest.where(row.at <= until)
        last = newest.subquery("last")
        is_last = sa.and_(row.store == last.c.store, row.space == last.c.space, row.at == last.c.at)
        query = sa.select(row.store, row.space, row.at, row["items"], row.bytes).join(last, is_last)
        query = query.order_by(row.store, row.space)
        return self._read(query if store is None else query.where(row.store == store))

    def averages(self, store: str, space: str, period: StatisticsPeriod) -> Sequence[SpaceSize]:
        """The mean size of a space in each period that has figures, the oldest first; ``at`` is when it began."""
        row, length = _statistics.c, int(period) * MICROSECONDS
        began = row.at // length * length
        columns: tuple[Any, ...] = (row.store, row.space, began, sa.func.avg(row["items"]), sa.func.avg(row.bytes))
        query = sa.select(*columns).where(row.store == store, row.space == space)
        query = query.group_by(row.store, row.space, began).order_by(began)
        return self._read(query)

    def _read(self, query: sa.Select[Any]) -> Sequence[SpaceSize]:
        with self._engine.connect() as connection:
            rows = connection.execute(query)
            return [SpaceSize(store, space, int(at), int(items), int(size)) for store, space, at, items, size in rows]


class StatisticsProcessor:
    """Takes :class:`StorageStatistics` tasks to their end."""

    def __init__(self, manifest: Manifest, statistics: SpaceStatisticsTable, providers: ConfiguredStores) -> None:
        self._manifest = manifest
        self._statistics = statistics
        self._clock = providers.clock

    def process(self, task: StorageStatistics, attempt: int) -> TaskResult:  # noqa: ARG002
        """Count, and keep the figures."""
        items, size = self._manifest.size(task.store, task.space)
        self._statistics.add(SpaceSize(task.store, task.space, self._clock.now(), items, size))
        return TaskResult(f"{task.store}/{task.space}: {items:,} items, {size:,} bytes")
