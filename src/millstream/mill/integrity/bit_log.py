"""The bit log: what each check found, since the last report on the space (seed document: "recorded in the BitLog").

Its only writer is :class:`millstream.mill.integrity.check_writer.CheckWriter`. A report takes the rows of its space,
keeps them as its table of text, and then they leave.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, NAME
from millstream.core.sql import make_tables_once, writing
from millstream.core.sql_rows import insert_rows
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult
from millstream.mill.manifest_table import IntactItems
from millstream.mill.merge_join import groups

metadata = sa.MetaData()

_log = sa.Table(
    "mill_bit_log",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("content_id", CONTENT_ID, primary_key=True),
    sa.Column("checked_at", sa.BigInteger, primary_key=True),
    sa.Column("verdict", EXACT_LONG_TEXT, nullable=False),
    sa.Column("row", EXACT_LONG_TEXT, nullable=False),
    sa.Column("kind", EXACT_LONG_TEXT, nullable=False),
    sa.Column("detail", EXACT_LONG_TEXT, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("manifest", EXACT_LONG_TEXT),
    sa.Column("provider", EXACT_LONG_TEXT),
    sa.Column("content", EXACT_LONG_TEXT),
    sqlite_with_rowid=False,
)

_FIELDS = tuple(column.name for column in _log.c)
_PAGE = 10_000
_PURGED = 50_000
"""Rows that leave in one transaction, so that no other writer waits long (reference mill §4)."""


class BitLog:
    """The bit log in the database of *engine*; the table is made where it is absent. Thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        make_tables_once(engine, metadata)

    def append(self, results: Iterable[CheckResult]) -> None:
        """Add what checks found; written twice it is there once. Durable when this returns."""
        for group in groups(results, _PURGED):
            rows = [_values(result) for result in group]
            with writing(self.engine) as connection:
                insert_rows(connection, _log, _FIELDS, rows)

    def append_intact(self, items: IntactItems) -> None:
        """:meth:`append` the check of each of *items*."""
        outcome = items.outcome
        found = (items.store, items.space, items.checked_at, outcome.verdict.value, outcome.row, outcome.kind)
        rows = list(zip(items.content_ids, items.sizes, items.sums, strict=True))
        with writing(self.engine) as connection:
            if connection.dialect.name != "sqlite":
                store, space, checked_at, *said = (*found, outcome.detail)
                whole = [(store, space, item, checked_at, *said, size, *[sha256] * 3) for item, size, sha256 in rows]
                insert_rows(connection, _log, _FIELDS, whole)
                return
            for some in groups(rows, _INTACT_ROWS):
                text = f"WITH found (item, bytes, sum) AS (VALUES {', '.join(['(?, ?, ?)'] * len(some))}) {_INTACT}"
                values = (*itertools.chain.from_iterable(some), *found, outcome.detail)
                connection.exec_driver_sql(text, values)

    def results(self, store: str, space: str, *, since: int = 0) -> Iterator[CheckResult]:
        """The last check of each item of a space from time *since* on (microseconds), in the order of the ids."""
        query = _of(sa.select(_log), store, space).where(_log.c.checked_at >= since)
        rows = self._pages(query.order_by(_log.c.content_id, _log.c.checked_at).limit(_PAGE))
        for _, checks in groupby(rows, key=lambda result: result.content_id):
            *_, last = checks
            yield last

    def count(self, store: str, space: str, *, since: int = 0) -> int:
        """How many items of a space were checked from time *since* on (microseconds)."""
        items = sa.select(sa.func.count(sa.distinct(_log.c.content_id)))
        with self.engine.connect() as connection:
            return int(connection.execute(_of(items, store, space).where(_log.c.checked_at >= since)).scalar_one())

    def spaces(self) -> Sequence[tuple[str, str]]:
        """Every (store, space) that has rows, sorted."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(_log.c.store, _log.c.space).distinct())
            return sorted((store, space) for store, space in rows)

    def purge(self, store: str, space: str, *, until: int) -> None:
        """Forget the checks of a space up to and at time *until* (microseconds)."""
        ids = _of(sa.select(_log.c.content_id), store, space).where(_log.c.checked_at <= until)
        page = ids.order_by(_log.c.content_id).limit(1).offset(_PURGED)
        gone = sa.delete(_log).where(_log.c.store == store, _log.c.space == space, _log.c.checked_at <= until)
        while True:
            with writing(self.engine) as connection:
                border = connection.execute(page).scalar_one_or_none()
                connection.execute(gone if border is None else gone.where(_log.c.content_id <= border))
            if border is None:
                return

    def _pages(self, query: sa.Select[Any]) -> Iterator[CheckResult]:
        after: tuple[str, int] | None = None
        while True:
            key = sa.tuple_(_log.c.content_id, _log.c.checked_at)
            page = query if after is None else query.where(key > sa.tuple_(*map(sa.literal, after)))
            with self.engine.connect() as connection:
                found = [_result(row) for row in connection.execute(page).mappings()]
            yield from found
            if len(found) < _PAGE:
                return
            after = (found[-1].content_id, found[-1].checked_at)


_INTACT_ROWS = 500
_INTACT = (
    f"INSERT INTO mill_bit_log ({', '.join(_FIELDS)}) "  # noqa: S608  (names of columns)
    "SELECT ?, ?, item, ?, ?, ?, ?, ?, bytes, sum, sum, sum FROM found WHERE true ON CONFLICT DO NOTHING"
)


def _of(query: Any, store: str, space: str) -> Any:
    return query.where(_log.c.store == store, _log.c.space == space)


_values: Callable[[CheckResult], tuple[Any, ...]] = operator.attrgetter(*_FIELDS)


def _result(row: Any) -> CheckResult:
    values = {name: row[name] for name in _FIELDS}
    return CheckResult(**values | {"verdict": CheckVerdict(row["verdict"])})
