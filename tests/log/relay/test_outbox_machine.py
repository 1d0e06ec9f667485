"""Applications with transactions of their own, and a relay that dies at any statement, against a list."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import Log, LogSpec, LogStore
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.memory import MemoryBackend
from millstream.log.relay import BatchLimits, open_outbox_database
from suite.sizes import machine, sized
from support.faulty_connection import CrashingDriver, SimulatedCrashError
from support.outboxes import bodies, connect_application, insert, make_outbox, relay_all

TABLES = ("outbox", "outbox_relay")


class Transaction:
    """What one transaction of an application has written, and between which turns of the world it lasted."""

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.ended: int | None = None
        self.bodies: list[bytes] = []


class OutboxMachine(RuleBasedStateMachine):
    """Sessions begin, write, commit and roll back; the relay moves, or dies at one of its statements."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    @initialize()
    def begin_world(self) -> None:
        make_outbox(self.url)
        sessions = 1 if self.url.startswith("sqlite:") else 3  # SQLite has one that writes at a time
        self.sessions: list[DatabaseConnection] = [connect_application(self.url) for _ in range(sessions)]
        self.open: dict[int, Transaction] = {}
        self.committed: list[Transaction] = []
        self.turn = 0
        clock = SystemClock()
        self.store = LogStore(MemoryBackend(clock), clock)
        self.log: Log = self.store.log(LogSpec("orders"))

    @rule(session=st.integers(0, 2), writes=st.integers(1, 4))
    def write(self, session: int, writes: int) -> None:
        session %= len(self.sessions)
        self.turn += 1
        if session not in self.open:
            self.open[session] = Transaction(self.turn)
            self.sessions[session].execute("BEGIN")
        for _ in range(writes):
            body = b"%d" % (sum(len(t.bodies) for t in (*self.committed, *self.open.values())) + 1000 * self.turn)
            self.open[session].bodies.append(body)
            insert(self.sessions[session], body)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.open)))
        transaction = self.open.pop(session)
        self.turn += 1
        self.sessions[session].execute("COMMIT" if commits else "ROLLBACK")
        if commits:
            transaction.ended = self.turn
            self.committed.append(transaction)

    @precondition(lambda self: not self.open or len(self.sessions) > 1)
    @rule(rows=st.integers(1, 6), statement=st.integers(1, 40), when=st.sampled_from(["before", "after"]))
    def relay_dies(self, rows: int, statement: int, when: Literal["before", "after"]) -> None:
        with contextlib.suppress(SimulatedCrashError):
            self.relay(rows, lambda driver: CrashingDriver(driver, statement, when))

    @precondition(lambda self: not self.open or len(self.sessions) > 1)
    @rule(rows=st.integers(1, 6))
    def relay_all(self, rows: int) -> None:
        self.relay(rows, lambda driver: driver)
        self.check()

    def relay(self, rows: int, around: Callable[[Any], Any]) -> None:
        relay_once(self.url, self.log, around, rows)

    def check(self) -> None:
        found = bodies(self.log)
        assert sorted(found) == sorted(body for t in self.committed for body in t.bodies), "each row exactly once"
        places = {body: place for place, body in enumerate(found)}
        for transaction in self.committed:
            assert transaction.bodies == sorted(transaction.bodies, key=places.__getitem__), "in the order of writing"
            for earlier in self.committed:
                if earlier.ended is not None and earlier.ended < transaction.begun:
                    assert places[earlier.bodies[-1]] < places[transaction.bodies[0]], "what ended first comes first"

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for session in [*self.open]:
            self.sessions[session].execute("ROLLBACK")
        self.open.clear()
        self.relay(3, lambda driver: driver)
        self.check()
        for name in TABLES:
            self.sessions[0].execute(f"DELETE FROM {name}")
        for connection in self.sessions:
            connection.close()
        self.store.close()


@pytest.mark.smoke
def test_p2_every_committed_row_is_in_the_log_once_and_in_order_wherever_the_relay_dies(database_url: str) -> None:
    examples = 25 if database_url.startswith("sqlite:") else 10
    run_state_machine_as_test(
        lambda: OutboxMachine(database_url), settings=machine(ci=examples, long=20 * examples, steps=20)
    )


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_p2_the_relay_may_die_at_each_of_its_statements(
    database_url: str, when: Literal["before", "after"], application: DatabaseConnection
) -> None:
    """One after the other (at CI size every third), until it gets through all its work without coming to that one."""
    for statement in range(1, 200, sized(ci=3, long=1)):
        for number in range(5):
            insert(application, b"%d" % number)
        died, found = die_and_go_on(database_url, statement, when)
        assert found == [b"%d" % number for number in range(5)]
        application.execute("DELETE FROM outbox_relay")
        if not died:
            assert statement > 20
            return
    raise AssertionError("the relay comes to an end")


def die_and_go_on(url: str, statement: int, when: Literal["before", "after"]) -> tuple[bool, list[bytes]]:
    """Whether a relay died at *statement*, and what a new log has once another one has finished."""
    clock = SystemClock()
    with LogStore(MemoryBackend(clock), clock) as store:
        log, died = store.log(LogSpec("orders")), False
        try:
            relay_once(url, log, lambda driver: CrashingDriver(driver, statement, when))
        except SimulatedCrashError:
            died = True
        relay_once(url, log, lambda driver: driver)
        return died, bodies(log)


def relay_once(url: str, log: Log, around: Callable[[Any], Any], rows: int = 2) -> None:
    with contextlib.closing(open_outbox_database(url, VirtualClock(), wrap_driver=around)) as source:
        relay_all(source, log, limits=BatchLimits(rows=rows))
