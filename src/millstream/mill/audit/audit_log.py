"""The audit log: every change that was made to an audited store, for ever, in the order in which it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, NAME, WHOLE_NUMBER
from millstream.core.decoding import prepared
from millstream.core.sql import make_tables_once, writing
from millstream.core.sql_rows import DriverQuery, among, insert_rows, json_array
from millstream.mill.column_join import ItemColumns
from millstream.mill.manifest_table import manifest_table
from millstream.mill.merge_join import groups
from millstream.stores.audit import CONTENT_CHANGES, AuditAction, AuditEvent

metadata = sa.MetaData()

_log = sa.Table(
    "mill_audit_log",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("action", EXACT_LONG_TEXT, nullable=False),
    sa.Column("user", EXACT_LONG_TEXT, nullable=False),
    sa.Column("account", EXACT_LONG_TEXT, nullable=False),
    sa.Column("store", NAME, nullable=False),
    sa.Column("store_type", EXACT_LONG_TEXT, nullable=False),
    sa.Column("space", NAME, nullable=False),
    sa.Column("content_id", CONTENT_ID, nullable=False),
    sa.Column("sha256", EXACT_LONG_TEXT),
    sa.Column("size", sa.BigInteger),
    sa.Column("mimetype", EXACT_LONG_TEXT),
    sa.Column("properties", sa.JSON(none_as_null=True)),
    sa.Column("acls", sa.JSON(none_as_null=True)),
    sa.Column("source_space", EXACT_LONG_TEXT),
    sa.Column("source_content_id", CONTENT_ID),
    sa.Index("mill_audit_log_item", "store", "space", "content_id", "number"),
)

COLUMNS = (
    "account", "store", "space", "content_id", "sha256", "size", "mimetype", "properties", "acls", "source_space",
    "source_content_id", "at", "action", "user",
)  # fmt: skip
"""The columns of the log as a table of text (reference mill §1.7)."""

_FIELDS = tuple(column.name for column in _log.c)
_VARIABLES = 500
_PAGE = 1000
_SCANNED = 4000
"""Items of which the sums are read at once where all of a space are wanted."""


class AuditLog:
    """The audit log in the database of *engine*; the table is made where it is absent. Events are only ever added."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        make_tables_once(engine, metadata)

    def append(self, events: Sequence[AuditEvent]) -> None:
        """Add *events*; those that the log has already (by their numbers) are left out. Durable when this returns."""
        with writing(self.engine) as connection:
            insert_rows(connection, _log, _FIELDS, [_values(event) for event in events])

    def events(
        self,
        store: str | None = None,
        space: str | None = None,
        content_id: str | None = None,
        *,
        account: str | None = None,
        after: int = 0,
        until: int | None = None,
    ) -> Iterator[AuditEvent]:
        """The events of a store, a space, an item, an account (of all, where None), the oldest first.

        Those whose numbers are above *after*, and *until* at most.
        """
        query = sa.select(_log).order_by(_log.c.number).limit(1000)
        wanted = {"store": store, "space": space, "content_id": content_id, "account": account}
        for name, value in wanted.items():
            query = query if value is None else query.where(_log.c[name] == value)
        if until is not None:
            query = query.where(_log.c.number <= until)
        while found := self._read(query.where(_log.c.number > after)):
            yield from found
            after = found[-1].number

    def last_events(self, store: str, space: str, *, until: int | None = None) -> Iterator[AuditEvent]:
        """The last event that added, copied or deleted each item of a space, in the order of the ids' bytes.

        With *until* (microseconds) the last one that happened until then.
        """
        last = (
            sa.select(sa.func.max(_log.c.number))
            .where(_log.c.store == store, _log.c.space == space, _log.c.action.in_(CONTENT_CHANGES))
            .group_by(_log.c.content_id)
        )
        if until is not None:
            last = last.where(_log.c.at <= until)
        after = ""
        while True:
            page = last.where(_log.c.content_id > after).order_by(_log.c.content_id).limit(1000).subquery()
            query = sa.select(_log).where(_log.c.number.in_(sa.select(page))).order_by(_log.c.content_id)
            found = self._read(query)
            yield from found
            if len(found) < 1000:
                return
            after = found[-1].content_id

    def last(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, AuditEvent]:
        """The last event that added, copied or deleted each of *content_ids*, by id; those without one are left out."""
        found: dict[str, AuditEvent] = {}
        for ids in groups(content_ids, _VARIABLES):
            events = self._read(sa.select(_log).where(_log.c.number.in_(_last(store, space, ids))))
            found.update((event.content_id, event) for event in events)
        return found

    def last_sums(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, str | None]:
        """The checksum (hex) that each of *content_ids* was last written with, by id; those that are deleted, or of
        which there is no event, are left out."""
        found: dict[str, str | None] = {}
        with self.engine.connect() as connection:
            for ids in groups(content_ids, _PAGE):
                rows = _SOME_SUMS.rows(connection, in_store=store, in_space=space, ids=json_array(ids))
                found.update((name, sha256) for name, action, sha256, _ in rows if action != _DELETED)
        return found

    def scan_sums(self, store: str, space: str) -> Iterator[ItemColumns]:
        """:meth:`last_sums` of all items of a space that are there by their last event: ids in order, and checksums."""
        after = ""
        while True:
            with self.engine.connect() as connection:
                rows = _PAGE_SUMS.rows(connection, in_store=store, in_space=space, above=after, most=_SCANNED)
            live = [(name, sha256) for name, action, sha256, _ in rows if action != _DELETED]
            if live:
                names, sums = zip(*live, strict=True)
                yield ItemColumns(list(names), (list(sums),))
            if len(rows) < _SCANNED:
                return
            after = rows[-1][0]

    def without_row(self, store: str, space: str, *, after: str = "") -> Iterator[str]:
        """The items of a space above *after* that are there by their last event, and of which the manifest has no row.

        In the order of the ids' bytes, read as they are taken. The manifest is the one of the same database.
        """
        while True:
            ids = sa.select(_log.c.content_id).distinct().where(_log.c.store == store, _log.c.space == space)
            page = ids.where(_log.c.content_id > after).order_by(_log.c.content_id).limit(_PAGE).subquery()
            row = sa.and_(
                manifest_table.c.store == store,
                manifest_table.c.space == space,
                manifest_table.c.content_id == page.c.content_id,
            )
            query = sa.select(page.c.content_id, manifest_table.c.content_id).select_from(
                page.outerjoin(manifest_table, row)
            )
            with self.engine.connect() as connection:
                found = connection.execute(query.order_by(page.c.content_id)).fetchall()
            lost = [name for name, known in found if known is None]
            yield from sorted(self.last_sums(store, space, lost))
            if len(found) < _PAGE:
                return
            after = found[-1][0]

    def spaces(self) -> Sequence[tuple[str, str]]:
        """Every (store, space) that has events, sorted."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(_log.c.store, _log.c.space).distinct())
            return sorted((store, space) for store, space in rows)

    def spaces_by_account(self) -> Sequence[tuple[str, str, str]]:
        """Every (account, store, space) that has events, sorted."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(_log.c.account, _log.c.store, _log.c.space).distinct())
            return sorted((account, store, space) for account, store, space in rows)

    def _read(self, query: sa.Select[Any]) -> list[AuditEvent]:
        with self.engine.connect() as connection:
            rows = connection.execute(query).mappings()
            return [msgspec.convert({str(name): row[name] for name in row}, prepared(AuditEvent)) for row in rows]


_DELETED = AuditAction.DELETE_CONTENT.value


def _sums(chosen: sa.Select[Any]) -> DriverQuery:
    """The last of the *chosen* events of each item: its id, the action and the checksum, by id."""
    last = chosen.group_by(_log.c.content_id).subquery()
    columns = (_log.c.content_id, _log.c.action, _log.c.sha256)
    query = sa.select(*columns, _log.c.number).join(last, _log.c.number == last.c.number)
    # With max, SQLite takes the other columns from the row that has the greatest number, in two thirds of the time.
    on_sqlite = chosen.with_only_columns(*columns, sa.func.max(_log.c.number)).group_by(_log.c.content_id)
    return DriverQuery(query.order_by(_log.c.content_id), on_sqlite=on_sqlite)


_LAST = sa.select(sa.func.max(_log.c.number).label("number")).where(
    _log.c.store == sa.bindparam("in_store"),
    _log.c.space == sa.bindparam("in_space"),
    sa.or_(*(_log.c.action == str(action) for action in CONTENT_CHANGES)),
)
_SOME_SUMS = _sums(_LAST.where(among(_log.c.content_id, sa.bindparam("ids", type_=sa.Text))))
_PAGE_SUMS = _sums(
    _LAST.where(_log.c.content_id > sa.bindparam("above"))
    .order_by(_log.c.content_id)
    .limit(sa.bindparam("most", type_=sa.Integer))
)


def _last(store: str, space: str, content_ids: Sequence[str]) -> sa.Select[tuple[int]]:
    """The number of the last event that added, copied or deleted each of *content_ids*."""
    return (
        sa.select(sa.func.max(_log.c.number))
        .where(_log.c.store == store, _log.c.space == space, _log.c.content_id.in_(content_ids))
        .where(_log.c.action.in_(CONTENT_CHANGES))
        .group_by(_log.c.content_id)
    )


def tsv_lines(events: Iterable[AuditEvent]) -> Iterator[str]:
    """The log as a table of text: a line of names, then one line an event.

    Tabs, line breaks and backslashes in a value are escaped with a backslash, so that a line is always an event.
    """
    yield "\t".join(COLUMNS) + "\n"
    for event in events:
        yield "\t".join(_text(getattr(event, name)) for name in COLUMNS) + "\n"


def _text(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8")
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


_ACTIONS = {action: action.value for action in AuditAction}


def _values(event: AuditEvent) -> tuple[Any, ...]:
    """The values of :data:`_FIELDS`, of the driver's own types."""
    return (
        event.number, event.at, _ACTIONS[event.action], event.user, event.account, event.store, event.store_type,
        event.space, event.content_id, event.sha256, event.size, event.mimetype, _json(event.properties),
        _json(event.acls), event.source_space, event.source_content_id,
    )  # fmt: skip


def _json(value: Mapping[str, str] | None) -> str | None:
    if value is None:
        return None
    return msgspec.json.encode(value).decode("utf-8") if value else "{}"
