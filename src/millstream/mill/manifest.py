"""The manifest, which the seed document calls the content index: what every store should hold, kept apart from them.

One row for each (store, space, content item), with the checksum that was recorded when the item was added, a flag when
it was deleted (a *tombstone*), and what the last integrity check found. It is the independent witness of every vote,
and the licence for every delete (promise P8).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.sql import make_tables_once
from millstream.core.sql_rows import DriverQuery, among, json_array, total
from millstream.mill.column_join import ItemColumns
from millstream.mill.column_scan import page_of, scan_pages
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest_table import (
    COMPARISON_COLUMNS,
    MANIFEST_SCHEMA,
    CheckResult,
    ComparisonRow,
    ManifestEvent,
    ManifestRow,
    manifest_table,
    metadata,
)
from millstream.mill.manifest_writer import ManifestWriter
from millstream.mill.merge_join import groups

__all__ = [
    "MANIFEST_SCHEMA",
    "CheckResult",
    "ComparisonRow",
    "Manifest",
    "ManifestEvent",
    "ManifestRow",
    "manifest_table",
]

_manifest = manifest_table
_COLUMNS_PAGE = 2_000  # of more rows than fit into the processor's cache, columns cost twice as much to make
_PAGE = 1_000  # as many as a listing has: what fits into the caches costs two thirds of what does not


class Manifest:
    """The manifest in a database, to be read. Thread-safe.

    *engine* is an SQLAlchemy engine; the table is created where it is absent. All that is written to it goes
    through ``writer`` (:class:`~millstream.mill.manifest_writer.ManifestWriter`), which has the time from *clock*.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        make_tables_once(engine, metadata)
        self.writer = ManifestWriter(engine, clock)

    def get(self, store: str, space: str, content_id: str) -> ManifestRow | None:
        """The row of one content item, tombstones included; None where there is none."""
        with self._engine.connect() as connection:
            row = connection.execute(_ONE, {"in_store": store, "in_space": space, "item": content_id}).first()
        return None if row is None else ManifestRow(*row)

    def get_many(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, ManifestRow]:
        """The rows of *content_ids* that exist, by id."""
        query = sa.select(_manifest).where(
            _manifest.c.store == store, _manifest.c.space == space, among(_manifest.c.content_id, content_ids)
        )
        return {row.content_id: row for row in self._select(query)}

    def get_columns(self, store: str, space: str, content_ids: Sequence[str]) -> ItemColumns:
        """The rows of *content_ids* that exist, in the columns of :meth:`scan_columns`."""
        with self._engine.connect() as connection:
            rows = _SOME.rows(connection, in_store=store, in_space=space, ids=json_array(content_ids))
        keys, *columns = map(list, zip(*rows, strict=True)) if rows else [[] for _ in COMPARISON_COLUMNS]
        return ItemColumns(keys, tuple(columns))

    def replicas(self, space: str, content_id: str) -> Sequence[ManifestRow]:
        """The rows of one content item in every store, tombstones included, by store."""
        query = sa.select(_manifest).where(_manifest.c.space == space, _manifest.c.content_id == content_id)
        return list(self._select(query.order_by(_manifest.c.store)))

    def replicas_of(self, space: str, content_ids: Sequence[str]) -> Iterator[ManifestRow]:
        """The rows of *content_ids* in every store, tombstones included."""
        for ids in groups(content_ids, _PAGE):
            yield from self._select(
                sa.select(_manifest).where(_manifest.c.space == space, among(_manifest.c.content_id, ids))
            )

    def rows(self, store: str | None = None, space: str | None = None, *, live_only: bool = False) -> pa.Table:
        """All rows of a store and space (of all, where None) as a table of :data:`MANIFEST_SCHEMA`, by key."""
        return pa.Table.from_batches(self.batches(store, space, live_only=live_only), MANIFEST_SCHEMA)

    def batches(
        self,
        store: str | None = None,
        space: str | None = None,
        *,
        columns: Sequence[str] = MANIFEST_SCHEMA.names,
        live_only: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same rows, as they stood at one moment, with these *columns* only, a few thousand in a batch."""
        query = sa.select(*(_manifest.c[name] for name in columns))
        query = _narrow(query, store, space)
        query = query.order_by(_manifest.c.store, _manifest.c.space, _manifest.c.content_id)
        if live_only:
            query = query.where(_manifest.c.deleted.is_(False))
        schema = pa.schema([MANIFEST_SCHEMA.field(name) for name in columns])
        with self._engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                rows: Any = connection.execute(query).cursor  # a row object each would cost more than all the rest
            else:  # a driver takes all rows of a query into memory unless it is told otherwise
                rows = connection.execution_options(stream_results=True, max_row_buffer=_COLUMNS_PAGE).execute(query)
            while some := rows.fetchmany(_COLUMNS_PAGE):
                yield _to_arrow(some, schema)

    def page(self, store: str, space: str, *, after: str = "", limit: int = 1000) -> Sequence[ManifestRow]:
        """Up to *limit* rows of a space whose ids come after *after*, in the order of their UTF-8 bytes."""
        query = _narrow(sa.select(_manifest), store, space).where(_manifest.c.content_id > after)
        return list(self._select(query.order_by(_manifest.c.content_id).limit(limit)))

    def starting_with(self, store: str, space: str, prefix: str, *, limit: int) -> Sequence[ManifestRow]:
        """Up to *limit* rows of a space whose ids begin with *prefix*, tombstones included, in the order of the ids."""
        query = _narrow(sa.select(_manifest), store, space).where(_manifest.c.content_id >= prefix)
        rows = self._select(query.order_by(_manifest.c.content_id).limit(limit))
        return [row for row in rows if row.content_id.startswith(prefix)]

    def scan(self, store: str, space: str, *, after: str = "") -> Iterator[ManifestRow]:
        """Every row of a space above *after*, tombstones included, page by page in the order of the ids."""
        while rows := self.page(store, space, after=after):
            yield from rows
            after = rows[-1].content_id

    def scan_columns(self, store: str, space: str, *, after: str = "") -> Iterator[ItemColumns]:
        """Like :meth:`scan`, in columns (those of :data:`COMPARISON_COLUMNS` except the id), several times as fast."""
        return scan_pages(self._engine, _KNOWN, (store, space), after=after, rows_at_once=_PAGE)

    def spaces(self) -> Sequence[tuple[str, str]]:
        """Every (store, space) that has live rows, sorted."""
        query = sa.select(_manifest.c.store, _manifest.c.space).where(_manifest.c.deleted.is_(False)).distinct()
        with self._engine.connect() as connection:
            return sorted((store, space) for store, space in connection.execute(query))

    def count(self, store: str | None = None, space: str | None = None) -> int:
        """How many live rows there are."""
        query = sa.select(sa.func.count()).select_from(_manifest).where(_manifest.c.deleted.is_(False))
        with self._engine.connect() as connection:
            return int(connection.execute(_narrow(query, store, space)).scalar_one())

    def only_in(self, store: str, space: str, others: Sequence[str]) -> Iterator[str]:
        """The live items of a space in *store* that *others* have no row of, not even a tombstone; in order."""
        here, other = _manifest.alias("here"), _manifest.alias("other")
        known = sa.select(1).where(
            other.c.store.in_(others), other.c.space == space, other.c.content_id == here.c.content_id
        )
        yield from self._names(here, store, space, ~known.exists())

    def lacking(self, sources: Sequence[str], space: str, store: str, *, until: int) -> Iterator[str]:
        """The live items of a space in *sources*, as of *until* (microseconds), that *store* has no live row of."""
        there, copy = _manifest.alias("there"), _manifest.alias("copy")
        copied = sa.select(1).where(
            copy.c.store == store, copy.c.space == space, copy.c.content_id == there.c.content_id, ~copy.c.deleted
        )
        for source in sources:
            yield from self._names(there, source, space, there.c.modified <= until, ~copied.exists())

    def _names(self, rows: sa.FromClause, store: str, space: str, *conditions: sa.ColumnElement[bool]) -> Iterator[str]:
        query = sa.select(rows.c.content_id).where(
            rows.c.store == store, rows.c.space == space, ~rows.c.deleted, ~rows.c.missing, *conditions
        )
        with self._engine.connect() as connection:
            yield from connection.scalars(query.order_by(rows.c.content_id))

    def failed_since(self, since: int) -> Iterator[tuple[str, str, str]]:
        """Store, space and id of each live row that a check after *since* (microseconds) did not find in order."""
        columns, bad = _manifest.c, (CheckVerdict.FAILURE.value, CheckVerdict.ERROR.value)
        query = sa.select(columns.store, columns.space, columns.content_id)
        query = query.where(~columns.deleted, columns.outcome.in_(bad), columns.checked_at > since)
        with self._engine.connect() as connection:
            yield from itertools.starmap(_place, connection.execute(query))

    def has_items(self, store: str) -> bool:
        """Whether any row of *store* is live."""
        query = sa.select(_manifest.c.space).where(_manifest.c.store == store, _manifest.c.deleted.is_(False)).limit(1)
        with self._engine.connect() as connection:
            return connection.execute(query).first() is not None

    def size(self, store: str, space: str) -> tuple[int, int]:
        """The number of live rows of a space, and the sum of their bytes."""
        return self.sizes(store, [space]).get(space, (0, 0))

    def sizes(self, store: str, spaces: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """The sizes (see :meth:`size`) of each of *spaces* that has live rows: one statement for all."""
        row = _manifest.c
        query = sa.select(row.space, sa.func.count(), total(row.size)).where(
            row.store == store, row.space.in_(spaces), row.deleted.is_(False)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query.group_by(row.space))
            return {space: (int(items), int(size)) for space, items, size in rows}

    def _select(self, query: sa.Select[Any]) -> Iterator[ManifestRow]:
        with self._engine.connect() as connection:
            yield from itertools.starmap(ManifestRow, connection.execute(query).fetchall())


_COMPARED = [_manifest.c[name] for name in COMPARISON_COLUMNS]
_KNOWN = DriverQuery(page_of(_manifest, *_COMPARED))
_SOME = DriverQuery(
    sa.select(*_COMPARED)
    .where(
        _manifest.c.store == sa.bindparam("in_store"),
        _manifest.c.space == sa.bindparam("in_space"),
        among(_manifest.c.content_id, sa.bindparam("ids", type_=sa.Text)),
    )
    .order_by(_manifest.c.content_id)
)
_ONE = sa.select(_manifest).where(
    _manifest.c.store == sa.bindparam("in_store"),
    _manifest.c.space == sa.bindparam("in_space"),
    _manifest.c.content_id == sa.bindparam("item"),
)


def _place(store: str, space: str, content_id: str) -> tuple[str, str, str]:
    return store, space, content_id


def _narrow(query: sa.Select[Any], store: str | None, space: str | None) -> sa.Select[Any]:
    if store is not None:
        query = query.where(_manifest.c.store == store)
    return query if space is None else query.where(_manifest.c.space == space)


def _to_arrow(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """*rows* as a driver has them: on SQLite a truth value is 0 or 1."""
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    return pa.RecordBatch.from_arrays([_array(column, field.type) for column, field in columns], schema=schema)


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind) and type(column[0]) is int:
        return pa.array(column, pa.int8()).cast(kind)
    return pa.array(column, kind)
