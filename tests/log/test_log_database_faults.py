"""Replies that are lost, transactions in the way and servers that go away: a commit is done exactly once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import (
    FencedError,
    IdRange,
    Log,
    LogSpec,
    LogStore,
    StorageBusyError,
    StorageFullError,
    StorageReadOnlyError,
    StorageUnavailableError,
    WriterFailedError,
    open_store,
)
from millstream.log.backends import mysql, postgres
from millstream.log.backends.database.driver import Code, DatabaseConnection, ServerError
from millstream.log.backends.mysql import driver as mysql_driver
from millstream.log.backends.mysql.statements import sql as mysql_sql
from millstream.log.backends.postgres import backend as postgres_backend
from millstream.log.backends.postgres import driver as postgres_driver
from millstream.log.backends.postgres.statements import sql as postgres_sql
from support.faulty_connection import ConnectionFault, FaultyDriver

SPEC = LogSpec("weather", block_messages=10)
PATIENCE = 30.0
LOST: dict[str, Code] = {"mysql": 2013, "postgresql": "08006"}
LOCK_WAIT: dict[str, Code] = {"mysql": 1205, "postgresql": "55P03"}
DEADLOCK: dict[str, Code] = {"mysql": 1213, "postgresql": "40P01"}

STEPS = {
    "mysql": ["START", "UPDATE", "INSERT INTO blocks", "INSERT INTO millstream_states", "COMMIT"],
    "postgresql": ["WITH moved"],
    "postgresql in parts": ["START", "WITH moved", "INSERT INTO blocks", "COMMIT"],
}
FAULTS = [
    (kind, ConnectionFault(step, when, LOST[kind.split()[0]]))
    for kind, steps in STEPS.items()
    for step in steps
    for when in ("before", "after")
] + [
    ("mysql", ConnectionFault("UPDATE", "before", LOCK_WAIT["mysql"])),
    ("mysql", ConnectionFault("INSERT", "before", DEADLOCK["mysql"])),
    ("mysql", ConnectionFault("COMMIT", "before", DEADLOCK["mysql"])),
    ("postgresql", ConnectionFault("WITH moved", "before", "57014")),
    ("postgresql", ConnectionFault("WITH moved", "after", "57P01")),
    ("postgresql in parts", ConnectionFault("INSERT", "before", DEADLOCK["postgresql"])),
    ("postgresql in parts", ConnectionFault("COMMIT", "before", "40001")),
]


def name_of(value: Any) -> str:
    return f"{value.statement} {value.when} {value.code}" if isinstance(value, ConnectionFault) else str(value)


@pytest.mark.parametrize(("kind", "fault"), FAULTS, ids=name_of)
def test_a_commit_whose_reply_is_lost_is_done_exactly_once(
    kind: str, fault: ConnectionFault, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.endswith("in parts"):
        monkeypatch.setattr(postgres_backend, "STATEMENT_BYTES", 1)
    url = request.getfixturevalue("database" if kind == "mysql" else "postgres_database")
    with faulty_store(url) as (store, driver), store.log(SPEC).writer("importer") as writer:
        writer.append([b"before"], sequence=1)
        driver.faults.append(fault)
        assert writer.append([b"in"] * 12, sequence=2) == IdRange(2, 13)
        assert not driver.faults, "the fault has happened"
        assert writer.append([b"after"], sequence=3) == IdRange(14, 14)
        bodies = [m.body for batch in store.log(SPEC).read() for m in batch]
        assert bodies == [b"before", *[b"in"] * 12, b"after"]
        assert store.log(SPEC).verify().ok


def test_a_commit_that_is_only_seen_is_made_durable_by_a_later_one(store_url: str) -> None:
    step = "COMMIT" if store_url.startswith("mysql:") else "WITH moved"
    touch = "UPDATE millstream_states SET version = version + 1 WHERE log = ''"
    with faulty_store(store_url) as (store, driver), store.log(SPEC).writer() as writer:
        for _ in range(2):
            driver.faults.extend([ConnectionFault(one, "after", lost(store_url)) for one in (step, touch, touch)])
            writer.append([b"a"])
            assert not driver.faults, "the later one was done, also where its own replies are lost"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lease_whose_reply_is_lost_is_held(store_url: str, when: Any) -> None:
    with faulty_store(store_url) as (store, driver):
        log = store.log(SPEC)
        driver.faults.append(ConnectionFault("UPDATE millstream_logs SET epoch", when, lost(store_url)))
        with log.writer() as writer:
            assert writer.append([b"a"]) == IdRange(1, 1)


@pytest.mark.parametrize("statement", ["INSERT INTO millstream_states", "UPDATE millstream_states"])
def test_an_acknowledgement_whose_reply_is_lost_does_not_fence_its_reader(store_url: str, statement: str) -> None:
    with faulty_store(store_url) as (store, driver):
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"a", b"b"])
        log.set_pointer("worker" if statement.startswith("UPDATE") else "other", 0)
        driver.faults.append(ConnectionFault(statement, "after", lost(store_url)))
        with log.reader("worker") as reader:
            reader.ack(1)
            reader.flush()
            reader.ack(2)
        assert not driver.faults
        assert log.pointer("worker") == 2


def test_a_commit_that_comes_after_a_take_over_is_fenced_though_its_connection_broke(store_url: str) -> None:
    with faulty_store(store_url) as (store, driver), open_store(store_url) as other:
        stale = store.log(SPEC).writer()
        stale.append([b"a"])
        stale._committer._backend.release_lease(SPEC.name, epoch=1)
        with other.log(SPEC).writer() as writer:
            writer.append([b"theirs"])
        first_step = "UPDATE" if store_url.startswith("mysql:") else "WITH moved"
        driver.faults.extend([ConnectionFault(first_step, "before", lost(store_url))] * 2)
        with pytest.raises(FencedError):
            stale.append([b"too late"])
        stale.close()
        assert [m.body for batch in store.log(SPEC).read() for m in batch] == [b"a", b"theirs"]


def test_p10_one_writer_one_that_hangs_inside_a_transaction_is_ended_by_the_server(
    log: Log, store_url: str, connection: DatabaseConnection
) -> None:
    """In PostgreSQL only a commit of dozens of mebibytes is a transaction of several statements."""
    if store_url.startswith("mysql:"):
        connection.execute(mysql_sql.SESSION)
        assert [*connection.rows("SELECT @@idle_transaction_timeout")] == [(2,)]
    else:
        connection.rows(postgres_sql.SESSION, "off")
        assert [*connection.rows("SHOW idle_in_transaction_session_timeout")] == [("2s",)]
    connection.execute(mysql_sql.BEGIN)
    assert connection.execute(mysql_sql.MOVE_POINTER, 60, 1, SPEC.name, 1, 50) == 1
    with log.writer() as writer:
        assert writer.append([b"a"]) == IdRange(51, 51)
    with pytest.raises(ServerError):
        connection.execute(mysql_sql.COMMIT)
    assert log.last_id == 51


def test_an_outage_is_logged_once_and_so_is_its_end(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    first_step = "START" if store_url.startswith("mysql:") else "WITH moved"
    with faulty_store(store_url) as (store, driver), caplog.at_level(logging.INFO), store.log(SPEC).writer() as w:
        driver.faults.extend([ConnectionFault(first_step, "before", lost(store_url))] * 7)
        w.append([b"a"])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "trying again" in told[0]
    assert "answers again" in told[1]


def test_patience_ends_and_the_error_says_what_to_see_to(store_url: str) -> None:
    with faulty_store(store_url) as (store, driver):
        log = store.log(SPEC)
        driver.faults.extend([ConnectionFault("SELECT", "before", lost(store_url))] * 2000)
        with pytest.raises(StorageUnavailableError, match="check that the server runs"):
            log.info()
        assert driver.connections > PATIENCE / 2, "its patience with pauses of two seconds at most"
        driver.faults.clear()
        driver.faults.extend([ConnectionFault("SELECT", "before", LOCK_WAIT[store_url.partition(":")[0]])] * 2000)
        with pytest.raises(StorageBusyError, match="find the transaction that holds the lock"):
            log.info()
        driver.faults.clear()


def test_a_server_that_becomes_read_only_is_named_and_the_writer_stops(
    store_url: str, connection: DatabaseConnection, set_global: Callable[[str, int | str], None]
) -> None:
    url, setting, value = store_url, "default_transaction_read_only", "on"
    if store_url.startswith("mysql:"):
        connection.execute("CREATE OR REPLACE USER 'reader'@'%' IDENTIFIED BY 's3cret'")
        connection.execute(f"GRANT ALL ON {store_url.rpartition('/')[2]}.* TO 'reader'@'%'")
        url, setting, value = f"mysql://reader:s3cret@{store_url.rpartition('@')[2]}", "read_only", "1"
    with faulty_store(url) as (store, driver):
        writer = store.log(SPEC).writer()
        writer.append([b"a"])
        if setting == "read_only":
            set_global(setting, int(value))
        else:  # a primary that was made a standby says so to each statement
            driver.faults.append(ConnectionFault("WITH moved", "before", "25006"))
        with pytest.raises(WriterFailedError, match="is read-only") as caught:
            writer.append([b"b"])
        assert isinstance(caught.value.__cause__, StorageReadOnlyError)
        driver.faults.append(ConnectionFault("UPDATE", "before", "25006" if setting != "read_only" else 1290))
        with pytest.raises(StorageReadOnlyError):
            writer.close()
        assert store.log(SPEC).last_id == 1


def test_an_administrator_who_ends_every_session_is_not_noticed(postgres_database: str) -> None:
    with open_store(postgres_database) as store, open_store(postgres_database) as other:
        log = store.log(SPEC)
        with log.writer() as writer, log.reader("worker") as reader:
            for turn in range(5):
                writer.append([b"%d" % turn])
                end_sessions(postgres_database)
            assert [m.body for batch in reader.batches() for m in batch] == [b"%d" % n for n in range(5)]
            reader.ack(5)
        assert other.log(SPEC).verify().messages == 5


def test_a_statement_that_takes_too_long_is_tried_again(postgres_database: str) -> None:
    """A lock that somebody holds is waited for by statements of limited length, and then the commit is done."""
    place = postgres.parse_address(postgres_database)
    holder = postgres_driver.connect(place)
    backend = postgres.PostgresBackend(place, SystemClock())
    with LogStore(backend, SystemClock()) as store, store.log(SPEC).writer() as writer:
        writer.append([b"a"])
        with_timeout = backend._pool.call(
            lambda pooled: pooled.connection.rows("SELECT set_config('lock_timeout', '100ms', false)")
        )
        assert with_timeout == [("100ms",)]
        holder.execute("BEGIN")
        holder.rows("SELECT FROM millstream_logs FOR UPDATE")
        ids = writer.append_nowait([b"b"])
        assert ids is not None
        holder.execute("SELECT pg_sleep(0.5)")
        holder.execute("COMMIT")
        writer.durable(ids.last, timeout=60)
    holder.close()


FULL = [("mysql", "INSERT INTO blocks", 1114), ("mysql", "COMMIT", 1021), ("postgresql", "WITH moved", "53100")]


@pytest.mark.parametrize(("kind", "step", "code"), FULL)
def test_a_server_whose_disk_is_full_stops_the_writer_and_the_next_one_goes_on(
    kind: str, step: str, code: Code, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("database" if kind == "mysql" else "postgres_database")
    with faulty_store(url) as (store, driver):
        log = store.log(SPEC)
        writer = log.writer()
        writer.append([b"before"])
        driver.faults.append(ConnectionFault(step, "before", code))
        with pytest.raises(WriterFailedError, match="free some space on the server") as caught:
            writer.append([b"in"])
        assert isinstance(caught.value.__cause__, StorageFullError)
        writer.close()
        with log.writer() as writer:
            assert writer.append([b"after"]) == IdRange(2, 2)
        assert [m.body for batch in log.read() for m in batch] == [b"before", b"after"]


def end_sessions(url: str) -> None:
    place = postgres.parse_address(url)
    connection = postgres_driver.connect(place)
    connection.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ? AND pid <> pg_backend_pid()",
        place.database,
    )
    connection.close()


def lost(url: str) -> Code:
    return LOST[url.partition(":")[0]]


@contextlib.contextmanager
def faulty_store(url: str) -> Iterator[tuple[LogStore, FaultyDriver[Any]]]:
    """A store on a virtual clock, whose pauses take no time, and the driver that makes it fail."""
    clock = VirtualClock()
    driver: FaultyDriver[Any]
    backend: mysql.MysqlBackend | postgres.PostgresBackend
    if url.startswith("mysql:"):
        mysql_place = mysql.parse_address(url)
        driver = FaultyDriver(mysql_driver.choose_driver(mysql_place))
        backend = mysql.MysqlBackend(mysql_place, clock, driver=driver, patience=PATIENCE)
    else:
        place = postgres.parse_address(url)
        driver = FaultyDriver(postgres_driver.choose_driver(place))
        backend = postgres.PostgresBackend(place, clock, driver=driver, patience=PATIENCE)
    with LogStore(backend, clock) as store:
        try:
            yield store, driver
        finally:
            driver.faults.clear()
