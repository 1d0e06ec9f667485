"""The manifest, which the seed document calls the content index: what every store should hold, kept apart from them.

One row for each (store, space, content item), with the checksum that was recorded when the item was added, a flag when
it was deleted (a *tombstone*), and what the last integrity check found. It is the independent witness of every vote,
and the licence for every delete (promise P8).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from millstream.core.sql import make_tables
from millstream.mill.bitcheck import ManifestAction, Verdict

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("sha256", pa.string()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mimetype", pa.string(), nullable=False),
        pa.field("modified", pa.int64(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("missing", pa.bool_(), nullable=False),
        pa.field("checked_at", pa.int64()),
        pa.field("verified_at", pa.int64()),
        pa.field("outcome", pa.string()),
        pa.field("detail", pa.string()),
    ]
)
"""The manifest as an Arrow table. Times are microseconds since the epoch, UTC; ``sha256`` is lower-case hex."""

_metadata = sa.MetaData()

_manifest = sa.Table(
    "mill_manifest",
    _metadata,
    sa.Column("store", sa.Text, primary_key=True),
    sa.Column("space", sa.Text, primary_key=True),
    sa.Column("content_id", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("mimetype", sa.Text, nullable=False),
    sa.Column("modified", sa.BigInteger, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("missing", sa.Boolean, nullable=False),
    sa.Column("checked_at", sa.BigInteger),
    sa.Column("verified_at", sa.BigInteger),
    sa.Column("outcome", sa.Text),
    sa.Column("detail", sa.Text),
    sa.Index("mill_manifest_item", "space", "content_id"),
    sqlite_with_rowid=False,
)

manifest_table = _manifest
"""The table, for those who only read it."""

_CHUNK = 50_000
_VARIABLES = 500


class Event(msgspec.Struct, frozen=True):
    """A content item was added (or changed, or copied) or deleted at ``at`` (microseconds since the epoch, UTC)."""

    store: str
    space: str
    content_id: str
    at: int
    sha256: str | None = None
    size: int = 0
    mimetype: str = "application/octet-stream"
    deleted: bool = False


class ManifestRow(msgspec.Struct, frozen=True):
    """What the manifest says of one content item in one store; the fields are those of :data:`MANIFEST_SCHEMA`.

    ``verified_at`` is when its bytes last matched ``sha256``; ``outcome`` and ``detail`` are of the last check.
    """

    store: str
    space: str
    content_id: str
    sha256: str | None
    size: int
    mimetype: str
    modified: int
    deleted: bool
    missing: bool
    checked_at: int | None = None
    verified_at: int | None = None
    outcome: str | None = None
    detail: str | None = None


class CheckResult(msgspec.Struct, frozen=True):
    """What a check found, ready for the manifest, a report and a repair.

    ``manifest``, ``provider`` and ``content`` are the observed sums (hex) or answers; ``size`` is in bytes,
    ``checked_at`` in microseconds since the epoch, UTC; ``row`` and ``kind`` are those of the outcome.
    """

    store: str
    space: str
    content_id: str
    verdict: Verdict
    row: str
    kind: str
    detail: str
    checked_at: int
    size: int = 0
    manifest: str | None = None
    provider: str | None = None
    content: str | None = None
    action: ManifestAction = ManifestAction.KEEP


class Manifest:
    """The manifest in a database. Thread-safe; every call is one transaction and durable when it returns.

    *engine* is an SQLAlchemy engine on SQLite; the table is created where it is absent.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._writing = threading.Lock()
        make_tables(engine, _metadata)

    def record(self, events: Iterable[Event]) -> None:
        """Apply *events*, in any order: an event older than its row is ignored, one of equal or later time wins.

        A delete of an unknown item leaves a tombstone; an add on a tombstone makes the row live again. What the last
        check found is kept while the checksum stays the same. (Reference mill, "Manifest event".)
        """
        self._write(_RECORD, [_event_values(event) for event in sorted(events, key=lambda e: e.at)])

    def apply(self, results: Iterable[CheckResult]) -> None:
        """Write down what checks found, and change the rows that an outcome asks to change.

        A result that was observed under another manifest sum than the row has now, or whose row is a tombstone by now,
        is dropped: it speaks of a version that is gone.
        """
        settled = [result for result in results if result.verdict != Verdict.RETRY]
        created = [_created_values(result) for result in settled if result.action == ManifestAction.CREATE]
        noted = [_noted_values(result) for result in settled if result.action != ManifestAction.CREATE]
        self._write(_CREATE, created)
        self._write(_NOTE, noted)

    def get(self, store: str, space: str, content_id: str) -> ManifestRow | None:
        """The row of one content item, tombstones included; None where there is none."""
        with self._engine.connect() as connection:
            row = connection.execute(_ONE, {"in_store": store, "in_space": space, "item": content_id}).first()
        return None if row is None else ManifestRow(*row)

    def get_many(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, ManifestRow]:
        """The rows of *content_ids* that exist, by id."""
        found: dict[str, ManifestRow] = {}
        for ids in _chunks(content_ids, _VARIABLES):
            query = sa.select(_manifest).where(
                _manifest.c.store == store, _manifest.c.space == space, _manifest.c.content_id.in_(ids)
            )
            found.update((row.content_id, row) for row in self._select(query))
        return found

    def replicas(self, space: str, content_id: str) -> Sequence[ManifestRow]:
        """The rows of one content item in every store, tombstones included, by store."""
        query = sa.select(_manifest).where(_manifest.c.space == space, _manifest.c.content_id == content_id)
        return list(self._select(query.order_by(_manifest.c.store)))

    def rows(self, store: str | None = None, space: str | None = None, *, live_only: bool = False) -> pa.Table:
        """All rows of a store and space (of all, where None) as a table of :data:`MANIFEST_SCHEMA`, by key."""
        query = sa.select(_manifest).order_by(_manifest.c.store, _manifest.c.space, _manifest.c.content_id)
        query = _narrow(query, store, space)
        if live_only:
            query = query.where(_manifest.c.deleted.is_(False))
        with self._engine.connect() as connection:
            result = connection.execute(query)
            batches = [_to_arrow(rows) for rows in iter(lambda: result.fetchmany(_CHUNK), [])]
        return pa.Table.from_batches(batches, MANIFEST_SCHEMA)

    def page(self, store: str, space: str, *, after: str = "", limit: int = 1000) -> Sequence[ManifestRow]:
        """Up to *limit* rows of a space whose ids come after *after*, in the order of their UTF-8 bytes."""
        query = _narrow(sa.select(_manifest), store, space).where(_manifest.c.content_id > after)
        return list(self._select(query.order_by(_manifest.c.content_id).limit(limit)))

    def scan(self, store: str, space: str, *, after: str = "") -> Iterator[ManifestRow]:
        """Every row of a space above *after*, tombstones included, page by page in the order of the ids."""
        while rows := self.page(store, space, after=after):
            yield from rows
            after = rows[-1].content_id

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

    def size(self, store: str, space: str) -> tuple[int, int]:
        """How many live rows a space has, and how many bytes they stand for together."""
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_manifest.c.size), 0)).where(
            _manifest.c.deleted.is_(False)
        )
        with self._engine.connect() as connection:
            items, size = connection.execute(_narrow(query, store, space)).one()
            return int(items), int(size)

    def _select(self, query: sa.Select[Any]) -> Iterator[ManifestRow]:
        with self._engine.connect() as connection:
            yield from itertools.starmap(ManifestRow, connection.execute(query).fetchall())

    def _write(self, statement: Any, values: Sequence[Mapping[str, Any]]) -> None:
        with self._writing, self._engine.begin() as connection:
            for chunk in _chunks(values, _CHUNK):
                connection.execute(statement, chunk)


def _record_statement() -> Any:
    """Insert, or update where the event is not older. A delete keeps what is known of the item."""
    new = insert(_manifest)
    given, row = new.excluded, _manifest.c
    same = sa.or_(given.deleted, given.sha256.is_not_distinct_from(row.sha256))
    described = {
        name: sa.case((given.deleted, row[name]), else_=given[name]) for name in ("sha256", "size", "mimetype")
    }
    checked = {n: sa.case((same, row[n])) for n in ("checked_at", "verified_at", "outcome", "detail")}
    return new.on_conflict_do_update(
        index_elements=[row.store, row.space, row.content_id],
        set_={"modified": given.modified, "deleted": given.deleted, "missing": False, **described, **checked},
        where=given.modified >= row.modified,
    )


def _note_statement() -> Any:
    row, found, verified = _manifest.c, sa.bindparam("found", type_=sa.Text), sa.bindparam("verified", type_=sa.Boolean)
    return (
        sa.update(_manifest)
        .where(row.store == sa.bindparam("in_store"), row.space == sa.bindparam("in_space"))
        .where(row.content_id == sa.bindparam("item"))
        .where(row.sha256.is_not_distinct_from(sa.bindparam("observed", type_=sa.Text)), row.deleted.is_(False))
        .values(
            sha256=sa.func.coalesce(found, row.sha256),
            size=sa.case((found.is_not(None), sa.bindparam("found_size", type_=sa.BigInteger)), else_=row.size),
            verified_at=sa.case((verified, sa.bindparam("at", type_=sa.BigInteger)), else_=row.verified_at),
            checked_at=sa.bindparam("at", type_=sa.BigInteger),
            missing=sa.bindparam("is_missing", type_=sa.Boolean),
            outcome=sa.bindparam("verdict", type_=sa.Text),
            detail=sa.bindparam("explanation", type_=sa.Text),
        )
    )


_ONE = sa.select(_manifest).where(
    _manifest.c.store == sa.bindparam("in_store"),
    _manifest.c.space == sa.bindparam("in_space"),
    _manifest.c.content_id == sa.bindparam("item"),
)
_RECORD, _NOTE = _record_statement(), _note_statement()
_CREATE = insert(_manifest).on_conflict_do_nothing()


def _event_values(event: Event) -> dict[str, Any]:
    return {
        "store": event.store,
        "space": event.space,
        "content_id": event.content_id,
        "sha256": event.sha256,
        "size": event.size,
        "mimetype": event.mimetype,
        "modified": event.at,
        "deleted": event.deleted,
        "missing": False,
    }


def _created_values(result: CheckResult) -> dict[str, Any]:
    event = Event(result.store, result.space, result.content_id, result.checked_at, result.provider, result.size)
    return _event_values(event) | {
        "checked_at": result.checked_at,
        "outcome": result.verdict.value,
        "detail": _describe(result),
    }


def _noted_values(result: CheckResult) -> dict[str, Any]:
    return {
        "in_store": result.store,
        "in_space": result.space,
        "item": result.content_id,
        "observed": result.manifest,
        "found": result.provider if result.action == ManifestAction.SET_TO_STORE else None,
        "found_size": result.size,
        "verified": result.verdict == Verdict.SUCCESS and result.content == result.manifest,
        "at": result.checked_at,
        "is_missing": result.action == ManifestAction.MARK_MISSING,
        "verdict": result.verdict.value,
        "explanation": _describe(result),
    }


def _describe(result: CheckResult) -> str:
    return f"{result.row} {result.kind}: {result.detail}"


def _narrow(query: sa.Select[Any], store: str | None, space: str | None) -> sa.Select[Any]:
    if store is not None:
        query = query.where(_manifest.c.store == store)
    return query if space is None else query.where(_manifest.c.space == space)


def _to_arrow(rows: Sequence[sa.Row[Any]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MANIFEST_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=MANIFEST_SCHEMA)


def _chunks(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))
