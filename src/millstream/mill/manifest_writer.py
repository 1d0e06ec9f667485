"""Writes the manifest (the seed document's content index): events of items, and what checks found."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.sql import writing
from millstream.core.sql_rows import Conflict, insert_rows
from millstream.mill.integrity_decision import CheckVerdict, ManifestAction
from millstream.mill.manifest_table import AddedItems, CheckResult, IntactItems, ManifestEvent
from millstream.mill.manifest_table import manifest_table as _manifest
from millstream.mill.merge_join import groups


class ManifestWriter:
    """Writes to the manifest in the database of *engine*, whose table exists. Thread-safe.

    Every call is durable when it returns. *clock* tells how old a result is that is written.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self.engine = engine
        self._clock = clock or SystemClock()

    def record(self, events: Iterable[ManifestEvent]) -> None:
        """Apply *events*, in any order: an event older than its row is ignored, one of equal or later time wins.

        A delete of an unknown item leaves a tombstone; an add on a tombstone makes the row live again. What the last
        check found is kept while the checksum stays the same. (Reference mill, "Manifest event".)
        """
        self._insert([_event_row(event) for event in sorted(events, key=lambda e: e.at)], _RECORD_COLUMNS, _RECORD)

    def record_added(self, items: AddedItems) -> None:
        """:meth:`record` the addition of each of *items*."""
        same = itertools.repeat
        rows = zip(
            same(items.store), same(items.space), items.content_ids, items.sums, items.sizes, items.mimetypes,
            same(items.at), same(0), same(0), strict=False,
        )  # fmt: skip
        self._insert(list(rows), _RECORD_COLUMNS, _RECORD)

    def apply(self, results: Iterable[CheckResult]) -> None:
        """Write down what checks found, and change the rows that an outcome asks to change.

        A result that was observed under another manifest sum than the row has now, or whose row is a tombstone by now,
        is dropped: it speaks of a version that is gone. So is one that is older than the last check in the row, as from
        a sweep that was resumed: it must not hide what was found later. Times of clocks that are ahead or were wrong
        count for less (:func:`_latest`).
        """
        settled = [result for result in results if result.verdict != CheckVerdict.RETRY]
        created = [_created_row(result) for result in settled if result.action == ManifestAction.CREATE]
        now = self._clock.now()
        noted = [
            _noted_row(result, _latest(result.checked_at, now))
            for result in settled
            if result.action != ManifestAction.CREATE
        ]
        self._insert(created, _CREATE_COLUMNS)
        with writing(self.engine) as connection:
            for some in groups(noted, _NOTED):
                _note(connection, some)

    def apply_intact(self, items: IntactItems) -> None:
        """:meth:`apply` the check of each of *items*."""
        pairs = list(zip(items.content_ids, items.sums, strict=True))
        if not pairs:
            return
        verdict, latest = items.outcome.verdict.value, _latest(items.checked_at, self._clock.now())
        with writing(self.engine) as connection:
            if connection.dialect.name == "sqlite":
                said = (items.checked_at, items.checked_at, verdict, items.note, items.store, items.space)
                times = (items.checked_at, latest)
                connection.exec_driver_sql(_NOTE_INTACT, [(*said, *pair, *times) for pair in pairs])
                return
            at, explained = items.checked_at, (verdict, items.note)
            for some in groups(pairs, _NOTED):
                rows = [
                    (items.store, items.space, name, sha256, None, 0, True, at, latest, False, *explained)
                    for name, sha256 in some
                ]
                _note(connection, rows)

    def remove_store(self, store: str) -> None:
        """Remove every row of *store*, tombstones included, a part at a time: after a crash, the rest is left."""
        columns = _manifest.c
        spaces = sa.select(columns.space).where(columns.store == store).distinct()
        with self.engine.connect() as connection:
            names = connection.scalars(spaces).all()
        for space in names:
            in_space = sa.and_(columns.store == store, columns.space == space)
            page = sa.select(columns.content_id).where(in_space).order_by(columns.content_id).limit(1).offset(_REMOVED)
            gone: str | None = ""
            while gone is not None:
                with writing(self.engine) as connection:
                    gone = connection.execute(page).scalar_one_or_none()
                    rows = in_space if gone is None else sa.and_(in_space, columns.content_id <= gone)
                    connection.execute(sa.delete(_manifest).where(rows))

    def _insert(
        self, rows: Sequence[tuple[Any, ...]], columns: Sequence[str], conflict: Conflict | None = None
    ) -> None:
        if rows:
            with writing(self.engine) as connection:
                insert_rows(connection, _manifest, columns, rows, conflict=conflict)


_RECORD_COLUMNS = ("store", "space", "content_id", "sha256", "size", "mimetype", "modified", "deleted", "missing")
_DESCRIBED, _FOUND = ("sha256", "size", "mimetype"), ("checked_at", "verified_at", "outcome", "detail")


def _record_clause() -> str:
    described = [
        f"{name} = CASE WHEN excluded.deleted THEN mill_manifest.{name} ELSE excluded.{name} END" for name in _DESCRIBED
    ]
    is_null = "coalesce(excluded.sha256, mill_manifest.sha256) IS NULL"  # both of them
    same = f"excluded.deleted OR coalesce(excluded.sha256 = mill_manifest.sha256, FALSE) OR {is_null}"
    found = [f"{name} = CASE WHEN {same} THEN mill_manifest.{name} END" for name in _FOUND]
    plain = ["modified = excluded.modified", "deleted = excluded.deleted", "missing = FALSE"]
    return (
        f"ON CONFLICT (store, space, content_id) DO UPDATE SET {', '.join(plain + described + found)} "
        "WHERE excluded.modified >= mill_manifest.modified"
    )


def _record_clause_on_mysql() -> str:
    """The same for MySQL, where what is assigned later sees what was assigned before."""
    same = "VALUES(deleted) OR VALUES(sha256) <=> sha256"
    values = {name: f"IF({same}, {name}, NULL)" for name in _FOUND}
    values |= {name: f"IF(VALUES(deleted), {name}, VALUES({name}))" for name in _DESCRIBED}
    values |= {"deleted": "VALUES(deleted)", "missing": "FALSE", "modified": "VALUES(modified)"}
    changes = [f"{name} = IF(VALUES(modified) >= modified, {value}, {name})" for name, value in values.items()]
    return f"ON DUPLICATE KEY UPDATE {', '.join(changes)}"


_RECORD = Conflict(_record_clause(), _record_clause_on_mysql())
"""An event is written over its row where it is not older. A delete keeps what is known of the item."""

_CREATE_COLUMNS = (*_RECORD_COLUMNS, "checked_at", "outcome", "detail")
_NOTED_AS = """
WITH noted (of_store, of_space, item, observed, found, found_size, verified, at, latest, gone, verdict, explanation) AS
"""
_NOTE_MARKS = f"({', '.join('?' * 12)})"
_NOTE = """
UPDATE mill_manifest SET
    sha256 = coalesce(noted.found, sha256),
    size = CASE WHEN noted.found IS NULL THEN size ELSE noted.found_size END,
    verified_at = CASE WHEN noted.verified THEN noted.at ELSE verified_at END,
    checked_at = noted.at, missing = noted.gone, outcome = noted.verdict, detail = noted.explanation
FROM noted
WHERE store = noted.of_store AND space = noted.of_space AND content_id = noted.item
    AND sha256 IS noted.observed AND NOT deleted
    AND (checked_at IS NULL OR checked_at <= noted.at OR checked_at > noted.latest)
"""
_NOTE_INTACT = """
UPDATE mill_manifest SET verified_at = ?, checked_at = ?, missing = 0, outcome = ?, detail = ?
WHERE store = ? AND space = ? AND content_id = ? AND sha256 IS ? AND NOT deleted
    AND (checked_at IS NULL OR checked_at <= ? OR checked_at > ?)
"""
_NOTED = 500
"""Checks in one statement: SQLite takes 32,766 values."""

_JUST_NOW = 3600 * MICROSECONDS
"""A result that is no older is of the present, so that no check of the row is later, whatever its clock said."""

_WRONG = 24 * 3600 * MICROSECONDS
"""A check that is dated so far ahead is of a clock that was wrong. Clocks of members differ by less."""

_REMOVED = 50_000
"""Rows that are removed in one transaction, so that no other writer waits long."""

_NOTE_COLUMNS = {
    "of_store": "text", "of_space": "text", "item": "text", "observed": "text", "found": "text", "found_size": "bigint",
    "verified": "boolean", "at": "bigint", "latest": "bigint", "gone": "boolean", "verdict": "text",
    "explanation": "text",
}  # fmt: skip
_NOTED_COLUMNS = ", ".join(f"%s::{kind}[]" for kind in _NOTE_COLUMNS.values())
_NOTE_ON_POSTGRESQL = f"""
UPDATE mill_manifest SET
    sha256 = coalesce(noted.found, mill_manifest.sha256),
    size = CASE WHEN noted.found IS NULL THEN mill_manifest.size ELSE noted.found_size END,
    verified_at = CASE WHEN noted.verified THEN noted.at ELSE mill_manifest.verified_at END,
    checked_at = noted.at, missing = noted.gone, outcome = noted.verdict, detail = noted.explanation
FROM unnest({_NOTED_COLUMNS}) AS noted ({", ".join(_NOTE_COLUMNS)})
WHERE store = noted.of_store AND space = noted.of_space AND content_id = noted.item
    AND mill_manifest.sha256 IS NOT DISTINCT FROM noted.observed AND NOT deleted
    AND (checked_at IS NULL OR checked_at <= noted.at OR checked_at > noted.latest)
"""  # noqa: S608  (names of columns)
_NOTE_ON_MYSQL = """
SET sha256 = coalesce(noted.found, sha256),
    size = CASE WHEN noted.found IS NULL THEN size ELSE noted.found_size END,
    verified_at = CASE WHEN noted.verified THEN noted.at ELSE verified_at END,
    checked_at = noted.at, missing = noted.gone, outcome = noted.verdict, detail = noted.explanation
WHERE sha256 <=> noted.observed AND NOT deleted
    AND (checked_at IS NULL OR checked_at <= noted.at OR checked_at > noted.latest)
"""


def _note(connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write down what checks found: *rows* of the columns of :data:`_NOTE_COLUMNS`, no item twice."""
    values = tuple(itertools.chain.from_iterable(rows))
    if connection.dialect.name == "sqlite":
        text = f"{_NOTED_AS} (VALUES {', '.join([_NOTE_MARKS] * len(rows))}) {_NOTE}"
    elif connection.dialect.name == "postgresql":
        text, values = _NOTE_ON_POSTGRESQL, tuple(map(list, zip(*rows, strict=True)))
    else:
        first = f"SELECT {', '.join(f'%s AS {name}' for name in _NOTE_COLUMNS)}"
        others = f" UNION ALL SELECT {', '.join(['%s'] * len(_NOTE_COLUMNS))}" * (len(rows) - 1)
        is_row = "store = noted.of_store AND space = noted.of_space AND content_id = noted.item"
        text = f"UPDATE mill_manifest JOIN ({first}{others}) AS noted ON {is_row} {_NOTE_ON_MYSQL}"
    connection.exec_driver_sql(text, values)


def _event_row(event: ManifestEvent) -> tuple[Any, ...]:
    described = (event.sha256, event.size, event.mimetype)
    return (event.store, event.space, event.content_id, *described, event.at, int(event.deleted), 0)


def _created_row(result: CheckResult) -> tuple[Any, ...]:
    event = ManifestEvent(
        result.store, result.space, result.content_id, result.checked_at, result.provider, result.size
    )
    return (*_event_row(event), result.checked_at, result.verdict.value, result.note)


def _latest(checked_at: int, now: int) -> int:
    """The time after which a recorded check counts as older than a result of *checked_at*, written *now*: its clock
    was ahead."""
    return now if checked_at >= now - _JUST_NOW else now + _WRONG


def _noted_row(result: CheckResult, latest: int) -> tuple[Any, ...]:
    found = result.provider if result.action == ManifestAction.SET_TO_STORE else None
    verified = result.verdict == CheckVerdict.SUCCESS and result.content == result.manifest
    missing = result.action == ManifestAction.MARK_MISSING
    place, at = (result.store, result.space, result.content_id), result.checked_at
    explained = (result.verdict.value, result.note)
    return (*place, result.manifest, found, result.size, verified, at, latest, missing, *explained)
