"""The items that a plan of duplication would delete or replace, or whose copies it keeps without an original."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.column_types import CONTENT_ID, NAME
from millstream.core.sql import SqlDatabase
from millstream.core.sql_rows import Conflict, insert_rows
from millstream.mill.duplication.differences import ComparedItem, ItemDifference
from millstream.mill.merge_join import groups
from millstream.mill.policies.policy import Pair

DELETE, REPLACE, VANISHED = "delete", "replace", "vanished"
"""The effect of a plan on the copy of an item: deletes it, puts other bytes in its place, or keeps it although its
original is gone, because no deletion is recorded."""

MOST = 10_000
"""Items of a plan that are kept in memory; those of a larger one are looked up again."""

_GROUP = 1_000
metadata = sa.MetaData()

_items = sa.Table(
    "mill_held_items",
    metadata,
    sa.Column("source", NAME, primary_key=True),
    sa.Column("destination", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("content_id", CONTENT_ID, primary_key=True),
    sa.Column("kind", NAME, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Index("mill_held_items_item", "space", "content_id"),
)
_COLUMNS = [column.name for column in _items.columns]
_UPDATE = Conflict(
    "ON CONFLICT (source, destination, space, content_id) DO UPDATE SET seen_at = excluded.seen_at, since = CASE WHEN "
    "mill_held_items.kind = excluded.kind THEN mill_held_items.since ELSE excluded.since END, kind = excluded.kind",
    "ON DUPLICATE KEY UPDATE seen_at = VALUES(seen_at), since = IF(kind = VALUES(kind), since, VALUES(since)), "
    "kind = VALUES(kind)",  # in this order: what is assigned later sees what was assigned before
)


class HeldItem(msgspec.Struct, frozen=True):
    """The item ``content_id`` and what the last plan does to its copy at ``destination`` (``kind``: ``delete``,
    ``replace`` or ``vanished``). ``since`` is when a plan first found that (microseconds).
    """

    source: str
    destination: str
    space: str
    content_id: str
    kind: str
    since: int


class HeldCount(msgspec.Struct, frozen=True):
    """The number of items of one kind between two stores in a space, and when the first of them was found
    (microseconds)."""

    source: str
    destination: str
    space: str
    kind: str
    items: int
    since: int


class LossCollector:
    """The items of a plan that its destination would lose, or that are only there: the first :data:`MOST`."""

    def __init__(self) -> None:
        self.found: list[ComparedItem] = []
        self.is_whole = True

    def add(self, item: ComparedItem) -> None:
        """Keep *item*."""
        self.is_whole = len(self.found) < MOST
        if self.is_whole:
            self.found.append(item)

    def items(self, again: Callable[[], Iterable[ComparedItem]]) -> Iterable[ComparedItem]:
        """All of them; *again* compares everything once more where there are too many to keep."""
        return self.found if self.is_whole else again()


class HeldItems:
    """The held items of all spaces in the database of *engine*. Thread-safe."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self._database, self._clock = SqlDatabase(engine, clock, metadata), clock

    def record(self, pair: Pair, space: str, items: Iterable[ComparedItem], *, is_held: bool) -> None:
        """Put *items* in the place of what was found before; without *is_held* only those that vanished.

        An item that was found before keeps its ``since``.
        """
        now = self._clock.now()
        losses = ((one.name, kind) for one in items if (kind := _kind(one)) and (is_held or kind == VANISHED))
        for group in groups(losses, _GROUP):
            self._write([(pair.source, pair.destination, space, name, kind, now, now) for name, kind in group])
        gone = sa.delete(_items).where(_of(pair, space), _items.c.seen_at != now)
        self._database.write(lambda connection, _: connection.execute(gone))

    def clear(self, pair: Pair, space: str) -> None:
        """A plan found none."""
        if self.page(pair, space, limit=1):
            self._database.write(lambda connection, _: connection.execute(sa.delete(_items).where(_of(pair, space))))

    def remove_store(self, store: str) -> None:
        """Remove the items of all plans from or to *store*."""
        gone = sa.delete(_items).where(sa.or_(_items.c.source == store, _items.c.destination == store))
        self._database.write(lambda connection, _: connection.execute(gone))

    def page(self, pair: Pair, space: str, *, after: str = "", limit: int = 100) -> Sequence[HeldItem]:
        """Up to *limit* items of *space* between the stores of *pair* with ids after *after*, by id."""
        query = _rows().where(_of(pair, space), _items.c.content_id > after)
        return self._read(query.order_by(_items.c.content_id).limit(limit))

    def vanished(
        self, store: str | None = None, space: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> Sequence[HeldItem]:
        """Up to *limit* items after the first *offset* that vanished from their source, the longest ago first."""
        query = _rows().where(_items.c.kind == VANISHED)
        if store is not None:
            query = query.where(_items.c.source == store)
        if space is not None:
            query = query.where(_items.c.space == space)
        order = (_items.c.since, _items.c.space, _items.c.content_id, _items.c.source, _items.c.destination)
        return self._read(query.order_by(*order).offset(offset).limit(limit))

    def of_item(self, space: str, content_id: str) -> Sequence[HeldItem]:
        """The effects of plans on the copies of one item."""
        return self._read(_rows().where(_items.c.space == space, _items.c.content_id == content_id))

    def counts(self) -> Sequence[HeldCount]:
        """How many there are of each kind, by stores and space."""
        keys = (_items.c.source, _items.c.destination, _items.c.space, _items.c.kind)
        query = sa.select(*keys, sa.func.count(), sa.func.min(_items.c.since)).group_by(*keys).order_by(*keys)
        return list(itertools.starmap(HeldCount, self._database.rows(query)))

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._database.write(lambda connection, _: insert_rows(connection, _items, _COLUMNS, rows, conflict=_UPDATE))

    def _read(self, query: sa.Select[Any]) -> Sequence[HeldItem]:
        return list(itertools.starmap(HeldItem, self._database.rows(query)))


def _rows() -> sa.Select[Any]:
    names = ("source", "destination", "space", "content_id", "kind", "since")
    return sa.select(*(_items.c[name] for name in names))


def _of(pair: Pair, space: str) -> sa.ColumnElement[bool]:
    stores = sa.and_(_items.c.source == pair.source, _items.c.destination == pair.destination)
    return sa.and_(stores, _items.c.space == space)


def _kind(item: ComparedItem) -> str:
    if item.replaces:
        return REPLACE
    return {ItemDifference.DELETE: DELETE, ItemDifference.HELD: VANISHED}.get(item.kind, "")
