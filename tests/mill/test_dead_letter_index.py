"""What is asked of a queue for each finding does not grow with its dead letters and its open tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.mill.workers.dead_letter_index import DeadLetterIndex
from millstream.queue.database_queue import DatabaseWorkQueue
from millstream.queue.protocol import Lease
from millstream.queue.task_rows import tasks

CAUSE = "UnresolvedError: all copies differ"
OLD = 2_500
FINDINGS = 20


class _Unreachable:
    """The notices of a broker that does not answer: all tasks are taken from the database."""

    def send(self, ids: Sequence[int], delays: Mapping[int, float] | None = None) -> Sequence[int]:
        return []

    def receive(self, count: int) -> Sequence[Any]:
        return []

    def settle(self, notices: Sequence[Any]) -> None: ...

    def close(self) -> None: ...


class _Steps:
    """Counts the instructions that SQLite executes, by tens."""

    def __init__(self, engine: sa.Engine) -> None:
        self.count = 0
        sa.event.listen(engine, "connect", lambda connection, _: connection.set_progress_handler(self._step, 10))

    def _step(self) -> int:
        self.count += 1
        return 0


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
    yield engine
    engine.dispose()


def test_a_finding_costs_the_same_however_many_dead_letters_and_open_tasks_there_are(engine: sa.Engine) -> None:
    steps, clock = _Steps(engine), VirtualClock()
    queue = DatabaseWorkQueue(_Unreachable(), engine, "bit-error", clock)
    old = [b"old %d" % number for number in range(OLD)]
    queue.put(old)
    with engine.begin() as connection:
        connection.execute(sa.update(tasks).values(dead=True, cause=CAUSE, died_at=1))
    queue.put([b"new %d" % number for number in range(FINDINGS)])
    clock.advance(600)
    leases = queue.lease(FINDINGS, visibility=600)
    queue.put([b"open"] * OLD)
    index = DeadLetterIndex(queue)
    assert index.has(_lease(old[7]), CAUSE) and index.has(_lease(old[-1]), CAUSE), "read in pages"
    before = steps.count
    for lease in leases:
        assert not index.has(lease, CAUSE)
        queue.dead_letter(lease, cause=CAUSE)
        index.add(lease, CAUSE)
        assert index.has(_lease(lease.body), CAUSE)
    per_finding = (steps.count - before) / FINDINGS
    assert per_finding < OLD / 50


def test_a_dead_letter_that_was_redriven_amended_or_discarded_does_not_count(engine: sa.Engine) -> None:
    clock = VirtualClock()
    queue = DatabaseWorkQueue(_Unreachable(), engine, "bit-error", clock)
    queue.put([b"redriven", b"amended", b"discarded", b"stays"])
    clock.advance(600)
    leases, index = queue.lease(4, visibility=600), DeadLetterIndex(queue)
    for lease in leases:
        queue.dead_letter(lease, cause=CAUSE)
    assert all(index.has(lease, CAUSE) for lease in leases) and not index.has(leases[0], "another cause")
    queue.redrive([leases[0].task_id])
    queue.amend(leases[1].task_id, b"another", seen=b"amended")
    queue.discard([leases[2].task_id])
    assert [index.has(lease, CAUSE) for lease in leases] == [False, False, False, True]


def _lease(body: bytes) -> Lease:
    return Lease(task_id=0, body=body, attempts=1, token="", until=0)
