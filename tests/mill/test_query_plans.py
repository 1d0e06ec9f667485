"""What a node asks its database for often is found by an index on every server, however many rows there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.core.database_server import open_server
from millstream.core.writers_lock import lock_writers
from millstream.mill.adoption.coverage import name_uncovered, recorded_coverage, recorded_damage
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity_decision import BitCheckOutcome, CheckVerdict
from millstream.mill.manifest import CheckResult, Manifest
from millstream.mill.manifest_table import AddedItems, IntactItems, manifest_table
from millstream.node import moving
from millstream.stores.audit import AuditAction, AuditEvent
from support.server_databases import new_database

pytestmark = pytest.mark.served
ROWS = {"quick": 10_000, "ci": 40_000, "long": 10_000_000}
TABLES = ("mill_manifest", "mill_audit_log", "mill_bit_log")
SUM = "a" * 64
_GROUP = 10_000


@pytest.fixture(params=["postgresql", "mariadb"])
def engine(request: pytest.FixtureRequest, size: str) -> Iterator[sa.Engine]:
    with new_database(str(request.getfixturevalue(request.param)), "plans") as url:
        engine = open_server(url)
        lock_writers(engine)
        fill_tables(engine, ROWS[size])
        yield engine
        engine.dispose()


def fill_tables(engine: sa.Engine, rows: int) -> None:
    """Items of two stores, half of the *rows* each, with an event and a check of every item of the first one."""
    manifest, audit, checks = Manifest(engine), AuditLog(engine), BitLog(engine)
    outcome = BitCheckOutcome("B1", CheckVerdict.SUCCESS, "intact", "all agree")
    for start in range(0, rows // 2, _GROUP):
        names = [f"item {number:09}" for number in range(start, min(start + _GROUP, rows // 2))]
        count = len(names)
        for store in "12":
            items = AddedItems(store, "s", 1, names, [SUM] * count, [1] * count, ["text/plain"] * count)
            manifest.writer.record_added(items)
        events = [
            AuditEvent(AuditAction.ADD_CONTENT, "ann", 1, "me", "1", "file", "s", name, SUM, 1, number=start + at + 1)
            for at, name in enumerate(names)
        ]
        audit.append(events)
        checks.append_intact(IntactItems("1", "s", 5, outcome, names, [SUM] * count, [1] * count))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in TABLES:
            word = "TABLE " if engine.dialect.name == "mysql" else ""
            connection.exec_driver_sql(f"ANALYZE {word}{table}")


def _ask(engine: sa.Engine) -> list[Callable[[], Any]]:
    manifest, audit = Manifest(engine), AuditLog(engine)
    some = [f"item {number:09}" for number in range(0, 1_000, 50)]
    outcome = BitCheckOutcome("B1", CheckVerdict.SUCCESS, "intact", "all agree")
    failure = CheckResult("1", "s", some[0], CheckVerdict.FAILURE, "B3", "corrupt", "x", 9, 1, SUM, None, None)
    return [
        lambda: manifest.get("1", "s", some[0]),
        lambda: manifest.get_many("1", "s", some),
        lambda: manifest.get_columns("1", "s", some),
        lambda: manifest.replicas("s", some[0]),
        lambda: list(manifest.replicas_of("s", some)),
        lambda: manifest.page("1", "s", after=some[3], limit=100),
        lambda: next(manifest.scan_columns("1", "s", after=some[3])),
        lambda: manifest.starting_with("1", "s", "item 0000001", limit=10),
        lambda: manifest.writer.apply([failure]),
        lambda: manifest.writer.apply_intact(IntactItems("1", "s", 10, outcome, some, [SUM] * 20, [1] * 20)),
        lambda: audit.last_sums("1", "s", some),
        lambda: audit.last("1", "s", some),
        lambda: next(audit.events("1", "s", some[0])),
        lambda: manifest.sizes("1", some),
        lambda: recorded_coverage(engine, "1", some, "2"),
        lambda: name_uncovered(engine, "1", some, "2", is_adopted=False, limit=3),
        lambda: recorded_damage(engine, "1", some),
    ]


def test_no_table_is_read_as_a_whole_for_some_of_its_rows(engine: sa.Engine) -> None:
    wholes = list[str]()

    def explain(_: Any, cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if not any(table in statement for table in TABLES) or statement.startswith(("EXPLAIN", "INSERT")):
            return
        cursor.execute(f"EXPLAIN {statement}", parameters)
        wholes.extend(f"{row}: {statement}" for row in cursor.fetchall() if _is_whole(row))

    questions = _ask(engine)
    sa.event.listen(engine, "before_cursor_execute", explain)
    for question in questions:
        question()
    assert not wholes, "\n".join(wholes)


def test_the_next_page_of_a_move_is_found_without_reading_what_comes_before_it(engine: sa.Engine) -> None:
    """In the middle of the rows of a store and a space, the first columns of the key are the same in all of them."""
    plans = list[str]()

    def explain(_: Any, cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        cursor.execute(f"EXPLAIN {statement}", parameters)
        plans.append("\n".join(row[0] for row in cursor.fetchall()))

    with engine.connect() as connection:
        rows = connection.scalar(sa.select(sa.func.count()).select_from(manifest_table))
        page = moving._pages(connection, manifest_table, ["1", "s", f"item {int(rows or 0) // 4:09}"])
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET enable_sort = off")  # a small table would be sorted
            sa.event.listen(engine, "before_cursor_execute", explain)
            next(page)
            bounds = [line for line in plans[0].splitlines() if "content_id > " in line]
            assert bounds and all("Index Cond: " in line for line in bounds), plans[0]
            return
        before = _rows_read(connection)
        found = len(next(page))
        assert found > 1_000 and _rows_read(connection) - before < 1.1 * found


def _rows_read(connection: sa.Connection) -> int:
    """How many entries of indexes and tables this session of MariaDB has read so far."""
    names = "'Handler_read_key', 'Handler_read_next', 'Handler_read_rnd', 'Handler_read_rnd_next'"
    rows = connection.exec_driver_sql(f"SHOW SESSION STATUS WHERE variable_name IN ({names})")
    return sum(int(value) for _, value in rows)


def _is_whole(row: tuple[Any, ...]) -> bool:
    """Whether a line of a plan says that one of the tables is read from its beginning to its end."""
    if len(row) == 1:
        return any(f"Seq Scan on {table}" in row[0] for table in TABLES)
    return row[2] in TABLES and row[3] in ("ALL", "index")
