"""The table of changes that were begun together: a row for a group of new items, beside the outbox."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.decoding import prepared
from millstream.core.sql_rows import driver_sql
from millstream.stores.audit.events import AuditEvent
from millstream.stores.audit.intents import IntentGroup

metadata = sa.MetaData()

_groups = sa.Table(
    "audit_outbox_groups",
    metadata,
    sa.Column("first", WHOLE_NUMBER, primary_key=True),
    sa.Column("last", WHOLE_NUMBER, nullable=False),
    sa.Column("holder", EXACT_LONG_TEXT, nullable=False),
    sa.Column("store", NAME, nullable=False),
    sa.Column("space", NAME, nullable=False),
    sa.Column("event", LONG_BYTES, nullable=False),
    sa.Column("content_ids", LONG_BYTES, nullable=False),
    sa.Column("described", LONG_BYTES, nullable=False),
)

numbers = sa.Table(
    "audit_outbox_numbers",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last", WHOLE_NUMBER, nullable=False),
)
"""On servers, the greatest number that was ever assigned, in one row; SQLite keeps it in its own table."""

_Described = tuple[list[str], list[str], list[dict[str, str]]]
_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(prepared(AuditEvent))
_ids_decoder = msgspec.json.Decoder(prepared(list[str]))
_described_decoder = msgspec.json.Decoder(prepared(_Described))
_LAST_NUMBER = {
    True: "SELECT seq FROM sqlite_sequence WHERE name = 'audit_outbox'",
    False: "SELECT last FROM audit_outbox_numbers",
}
_GIVEN = {
    True: "UPDATE sqlite_sequence SET seq = ? WHERE name = 'audit_outbox'",
    False: "UPDATE audit_outbox_numbers SET last = ?",
}
_FIRST_GIVEN = {
    True: "INSERT INTO sqlite_sequence VALUES ('audit_outbox', ?)",
    False: "INSERT INTO audit_outbox_numbers (id, last) VALUES (1, ?)",
}
_COLUMNS = "first, holder, event, content_ids, described"


def insert_group(connection: sa.Connection, group: IntentGroup) -> None:
    """Write *group* down, and let no event get one of its numbers again."""
    event = group.event
    row = (
        event.number, group.last, group.holder, event.store, event.space, _encoder.encode(event),
        _encoder.encode(group.content_ids), _encoder.encode((group.sums, group.mimetypes, group.properties)),
    )  # fmt: skip
    driver_sql(connection, "INSERT INTO audit_outbox_groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    give_numbers(connection, group.last)


def last_number(connection: sa.Connection) -> int:
    """The greatest number that was ever given; no event gets one of those again."""
    return driver_sql(connection, _LAST_NUMBER[connection.dialect.name == "sqlite"]).scalar() or 0


def give_numbers(connection: sa.Connection, last: int) -> None:
    """Let no event get a number up to *last* again. SQLite itself takes care of those of rows that were inserted."""
    is_sqlite = connection.dialect.name == "sqlite"
    if not driver_sql(connection, _GIVEN[is_sqlite], (last,)).rowcount:
        driver_sql(connection, _FIRST_GIVEN[is_sqlite], (last,))


def newest_time(connection: sa.Connection) -> int:
    """When the last change of the newest group was begun (microseconds); 0 where there is none."""
    query = "SELECT event, last - first FROM audit_outbox_groups ORDER BY first DESC LIMIT 1"
    row = driver_sql(connection, query).first()
    return 0 if row is None else _event_decoder.decode(row[0]).at + int(row[1])


def groups_of(connection: sa.Connection, store: str | None = None, space: str | None = None) -> Sequence[IntentGroup]:
    """All groups, or those of one space; the oldest first."""
    query, values = f"SELECT {_COLUMNS} FROM audit_outbox_groups", ()  # noqa: S608
    if store is not None:
        query, values = f"{query} WHERE store = ? AND space = ?", (store, space)  # type: ignore[assignment]
    return [_group(row) for row in driver_sql(connection, f"{query} ORDER BY first", values)]


def names_of(connection: sa.Connection, store: str, space: str) -> Iterator[list[str]]:
    """The content ids of each group of a space."""
    query = "SELECT content_ids FROM audit_outbox_groups WHERE store = ? AND space = ?"
    for (ids,) in driver_sql(connection, query, (store, space)).fetchall():
        yield _ids_decoder.decode(ids)


def targets_of_others(connection: sa.Connection, holder: str) -> Iterator[tuple[str, str, str]]:
    """Each item that another process than *holder* is adding in a group."""
    query = "SELECT store, space, content_ids FROM audit_outbox_groups WHERE holder <> ?"
    for store, space, ids in driver_sql(connection, query, (holder,)).fetchall():
        yield from ((store, space, name) for name in _ids_decoder.decode(ids))


def oldest_number(connection: sa.Connection, store: str, space: str) -> int | None:
    """The least number of a change of the space that is in a group."""
    query = "SELECT MIN(first) FROM audit_outbox_groups WHERE store = ? AND space = ?"
    found: int | None = driver_sql(connection, query, (store, space)).scalar()
    return found


def take_whole(connection: sa.Connection, numbers: Sequence[int]) -> list[int]:
    """Remove the groups all of whose changes are among *numbers*, which ascend; the numbers that are left."""
    left, query = list(numbers), "SELECT first, last FROM audit_outbox_groups WHERE last >= ? AND first <= ?"
    for first, last in driver_sql(connection, query, (numbers[0], numbers[-1])).fetchall() if numbers else ():
        start, end = bisect_left(left, first), bisect_right(left, last)
        if end - start == last - first + 1:
            del left[start:end]
            _remove(connection, first)
    return left


def take_touched(connection: sa.Connection, numbers: Mapping[int, Any]) -> list[IntentGroup]:
    """Remove the groups of which any change is among *numbers*, and give them."""
    if not numbers:
        return []
    query = f"SELECT {_COLUMNS} FROM audit_outbox_groups WHERE last >= ? AND first <= ?"  # noqa: S608
    rows = driver_sql(connection, query, (min(numbers), max(numbers))).fetchall()
    groups = [_group(row) for row in rows]
    touched = [one for one in groups if any(n in numbers for n in range(one.event.number, one.last + 1))]
    for one in touched:
        _remove(connection, one.event.number)
    return touched


def _remove(connection: sa.Connection, first: int) -> None:
    driver_sql(connection, "DELETE FROM audit_outbox_groups WHERE first = ?", (first,))


def _group(row: Any) -> IntentGroup:
    first, holder, event, ids, described = row
    sums, mimetypes, properties = _described_decoder.decode(described)
    common = msgspec.structs.replace(_event_decoder.decode(event), number=first)
    return IntentGroup(common, holder, _ids_decoder.decode(ids), sums, mimetypes, properties)
