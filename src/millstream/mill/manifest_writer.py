"""The one who writes the manifest (the seed document's content index): events of items, and what checks found."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from millstream.mill.bitcheck import ManifestAction, Verdict
from millstream.mill.joining import groups
from millstream.mill.manifest_table import CheckResult, Event
from millstream.mill.manifest_table import manifest_table as _manifest

_CHUNK = 50_000


class ManifestWriter:
    """Writes to the manifest in the database of *engine* (SQLite), whose table exists. Thread-safe.

    Every call is durable when it returns.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._writing = threading.Lock()

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

    def _write(self, statement: Any, values: Sequence[Mapping[str, Any]]) -> None:
        with self._writing, self._engine.begin() as connection:
            for chunk in groups(values, _CHUNK):
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
