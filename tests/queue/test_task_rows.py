"""The rows of a work queue on database servers, where several processes change them at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.core.database_server import open_server
from millstream.queue.task_rows import TaskRows, tasks
from support.server_databases import new_database
from support.statement_counts import statements_of
from support.statement_order import before_statement

VISIBILITY = 60_000_000


@pytest.fixture(params=["mariadb", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    with new_database(request.getfixturevalue(request.param), "queue") as url:
        engine = open_server(url)
        yield engine
        engine.dispose()


def dead_tasks(rows: TaskRows, count: int) -> list[int]:
    """The ids of *count* new tasks that are dead."""
    ids = list(rows.put([b"%d" % n for n in range(count)], 0))
    for lease in rows.claim(ids, VISIBILITY):
        assert rows.bury(lease, "broken")
    return ids


@pytest.mark.served
def test_a_redrive_leaves_tasks_alone_that_another_redrive_has_freed(engine: sa.Engine) -> None:
    rows = TaskRows(engine, "tasks", VirtualClock(), server_time=False)
    ids = dead_tasks(rows, 3)
    leases = []

    def free_and_lease_them() -> None:
        assert set(rows.revive(None, None)) == set(ids)
        leases.extend(rows.claim(ids, VISIBILITY))

    with before_statement(engine, "UPDATE", free_and_lease_them):
        assert rows.revive(None, None) == {}
    assert [lease.attempts for lease in leases] == [1, 1, 1]
    assert None not in rows.extend(leases, VISIBILITY), "the worker still has them"
    assert rows.claim(ids, VISIBILITY) == []


@pytest.mark.served
def test_a_redrive_sends_a_statement_for_many_tasks(engine: sa.Engine) -> None:
    rows = TaskRows(engine, "tasks", VirtualClock(), server_time=False)
    ids = dead_tasks(rows, 90)
    with statements_of(engine) as statements:
        assert rows.revive(ids[::-1], None) == dict.fromkeys(ids, 0)
    assert len(statements) <= 6
    assert [lease.task_id for lease in rows.claim(ids, VISIBILITY)] == ids


@pytest.mark.served
def test_a_due_task_whose_row_is_locked_is_to_be_asked_for_again(engine: sa.Engine) -> None:
    rows = TaskRows(engine, "tasks", VirtualClock(), server_time=False)
    ids = list(rows.put([b"a", b"b"], 0))
    with engine.begin() as connection:
        connection.execute(sa.update(tasks).where(tasks.c.task_id == ids[0]).values(noticed=True))
        assert [lease.task_id for lease in rows.claim(ids, VISIBILITY)] == ids[1:]
        assert list(rows.seconds_until_due(ids)) == ids[:1]
