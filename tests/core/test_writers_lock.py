"""Those who write to a node's database on a server take turns, and an older program leaves newer tables alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core import writers_lock
from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.database_server import end_idle_transactions, open_server
from millstream.core.errors import MillstreamError
from millstream.core.sql import SqlDatabase, make_tables, server_time, writing
from millstream.core.writers_lock import NewerSchemaError, is_made, lock_writers
from millstream.node import Node
from millstream.settings import Settings
from millstream.settings.node_settings import NodeSettings
from millstream.testing.waiting import until
from support.server_databases import new_database
from support.statement_counts import statements_of

pytestmark = pytest.mark.served
_metadata = sa.MetaData()
_counter = sa.Table(
    "counter", _metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Integer, nullable=False)
)


@pytest.fixture(params=["postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with new_database(str(request.getfixturevalue(request.param)), "turns") as url:
        yield url


def test_what_two_processes_read_before_they_write_stays_true(url: str) -> None:
    engines = [open_server(url) for _ in range(2)]
    for engine in engines:
        lock_writers(engine)
    make_tables(engines[0], _metadata)
    with writing(engines[0]) as connection:
        connection.execute(sa.insert(_counter).values(id=1, n=0))

    def count(engine: sa.Engine) -> None:
        for _ in range(20):
            with writing(engine) as connection, writing(engine) as inner:
                assert inner is connection
                found = connection.scalar(sa.select(_counter.c.n))
                connection.execute(sa.update(_counter).values(n=found + 1))

    threads = [threading.Thread(target=count, args=(engine,)) for engine in engines for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with engines[0].connect() as connection:
        assert connection.scalar(sa.select(_counter.c.n)) == 80
    for engine in engines:
        engine.dispose()


def test_the_lock_tells_the_time_after_it_was_waited_for(url: str) -> None:
    engine, other = open_server(url), open_server(url)
    for each in (engine, other):
        lock_writers(each)
    database, started = SqlDatabase(engine, SystemClock(), _metadata), threading.Event()

    def times(connection: sa.Connection, now: int) -> tuple[int, int]:
        with writing(engine) as same:
            assert same is connection
            return now, database.write(lambda _connection, later: later)

    def wait() -> tuple[int, int]:
        started.set()
        return database.write(times)

    with ThreadPoolExecutor(1) as pool, statements_of(engine) as statements:
        with writing(other) as connection:
            waiting = pool.submit(wait)
            started.wait()
            until(lambda: bool(statements))
            released = server_time(connection)
        now, later = waiting.result()
    assert released <= now < later <= now + 60 * MICROSECONDS
    assert len(statements) == 2, "one for the lock, and one for the time of the second part"
    engine.dispose()
    other.dispose()


def test_a_process_that_is_stopped_within_its_turn_keeps_the_others_waiting_for_a_while_only(url: str) -> None:
    stopped, other = open_server(url), open_server(url)
    end_idle_transactions(stopped, 0.5)
    for engine in (stopped, other):
        lock_writers(engine)
    with pytest.raises(sa.exc.OperationalError), writing(stopped) as connection:
        with writing(other):
            pass
        connection.execute(sa.select(1))
    with writing(stopped):
        pass
    for engine in (stopped, other):
        engine.dispose()


def test_every_database_of_a_node_ends_the_transactions_of_a_stopped_process(url: str, tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), node=NodeSettings(lease=Duration(MICROSECONDS)))
    with Node.open(settings, create=True) as node, node.databases.at(url).connect() as connection:
        is_postgresql = connection.dialect.name == "postgresql"
        query = "SHOW idle_in_transaction_session_timeout" if is_postgresql else "SELECT @@idle_transaction_timeout"
        assert str(connection.scalar(sa.text(query))).removesuffix("s") == "2"


def test_any_number_may_open_it_at_once_and_an_older_program_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, failures = open_server(url), list[BaseException]()
    assert not is_made(engine)

    def open_it() -> None:
        try:
            lock_writers(engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and is_made(engine)
    older = open_server(url)
    lock_writers(older)
    monkeypatch.setattr(writers_lock, "SCHEMA_VERSION", 2)
    with pytest.raises(MillstreamError, match="not yet"):
        lock_writers(engine, refuse)
    lock_writers(engine)
    monkeypatch.setattr(writers_lock, "SCHEMA_VERSION", 1)
    with pytest.raises(NewerSchemaError, match="have version 2"):
        lock_writers(engine)
    with pytest.raises(NewerSchemaError, match="install the version of millstream"), writing(older):
        pytest.fail("an older program wrote to newer tables")
    engine.dispose()
    older.dispose()


def refuse(_connection: sa.Connection) -> None:
    raise MillstreamError("not yet")
