"""A failed call of a database is told as what it is: away, locked, full, refused, or another failure."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core.clock import SystemClock
from millstream.core.database_server import open_server
from millstream.core.retry import RetryPolicy
from millstream.core.sql import SqlBusyError, SqlDatabase, waiting_with
from millstream.core.sql_failures import describe_sql_failure
from millstream.testing import services
from support.server_databases import new_database

ROW = sa.Table("rows_of_a_test", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Text))


@contextlib.contextmanager
def failing() -> Iterator[list[str]]:
    said = list[str]()
    with pytest.raises((sa.exc.OperationalError, sa.exc.InterfaceError)) as raised:
        yield said
    said.append(describe_sql_failure(raised.value))


def test_a_file_that_is_locked_full_or_without_the_table_is_not_called_away(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}", connect_args={"timeout": 0})
    with engine.begin() as connection:
        ROW.create(connection)
    with engine.connect() as one, engine.connect() as two:
        one.exec_driver_sql("BEGIN IMMEDIATE")
        with failing() as said:
            two.exec_driver_sql("BEGIN IMMEDIATE")
        assert said == ["was locked by other transactions (database is locked): try again"]
        one.rollback()
        one.exec_driver_sql("PRAGMA max_page_count = 2")
        with failing() as said:
            one.execute(sa.insert(ROW).values(id=1, n="x" * 10_000))
        assert said == ["has no free space (database or disk is full): free some space"]
    with engine.connect() as one, failing() as said:
        one.exec_driver_sql("SELECT * FROM other")
    assert said == ["failed (no such table: other)"]
    engine.dispose()


@pytest.mark.served
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_server_that_waits_for_a_lock_is_not_called_away(request: pytest.FixtureRequest, kind: str) -> None:
    with new_database(str(request.getfixturevalue(kind)), "failures") as url:
        engine = open_server(url)
        with engine.begin() as connection:
            ROW.create(connection)
            connection.execute(sa.insert(ROW).values(id=1))
        change = sa.update(ROW).values(n="changed")
        with engine.connect() as one, engine.connect() as two:
            one.execute(change)
            limit = "innodb_lock_wait_timeout = 1" if kind == "mariadb" else "lock_timeout = '100ms'"
            two.exec_driver_sql(f"SET SESSION {limit}")
            with failing() as said:
                two.execute(change)
            assert said[0].startswith("was locked by other transactions (")
            two.rollback()
            number = two.scalar(sa.text("SELECT CONNECTION_ID()" if kind == "mariadb" else "SELECT pg_backend_pid()"))
            kill = f"KILL {number}" if kind == "mariadb" else f"SELECT pg_terminate_backend({number}, 10000)"
            one.exec_driver_sql(kill)
            with failing() as said:
                two.execute(change)
            assert said[0].startswith("did not answer (") and said[0].endswith("correct its URL in the settings")
        engine.dispose()


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_a_server_that_is_not_there_is_away(scheme: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(SqlBusyError, match=r"did not answer \(.*refused.*\): start its server"):
            open_server(f"{scheme}://a:b@127.0.0.1:{probe.getsockname()[1]}/c", patience=RetryPolicy(attempts=1))


@pytest.mark.served
def test_a_server_that_takes_no_writes_is_reached_over_a_new_connection(postgresql: str) -> None:
    with new_database(postgresql, "failures") as url:
        name, other, engine = sa.make_url(url).database, open_server(postgresql + "postgres"), open_server(url)
        with engine.begin() as connection:
            ROW.create(connection)
        switch = "ALTER DATABASE {} SET default_transaction_read_only = {}"  # a connection keeps what it began with
        with other.begin() as connection:
            connection.exec_driver_sql(switch.format(name, "on"))
        engine.dispose()
        database = SqlDatabase(engine, SystemClock(), ROW.metadata)
        refused = pytest.raises(SqlBusyError, match=r"takes no writes \(.*read-only transaction\): correct its URL")
        with refused, waiting_with(RetryPolicy(attempts=1)):
            database.write(lambda connection, _: connection.execute(sa.insert(ROW).values(id=1)))
        with other.begin() as connection:
            connection.exec_driver_sql(switch.format(name, "off"))
        with waiting_with(RetryPolicy(attempts=1)):
            database.write(lambda connection, _: connection.execute(sa.insert(ROW).values(id=1)))
        for each in (engine, other):
            each.dispose()


@pytest.mark.served
def test_mariadb_that_takes_no_writes_is_not_called_away() -> None:
    with services.private("mariadb") as server:
        admin = open_server(server.url + "failures")
        with admin.begin() as connection:
            ROW.create(connection)
            for statement in ("CREATE USER ada IDENTIFIED BY 'a'", "GRANT ALL ON failures.* TO ada"):
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("SET GLOBAL read_only = 1")
        account = sa.make_url(server.url + "failures").set(username="ada", password="a")
        engine = open_server(account.render_as_string(hide_password=False))
        with engine.connect() as connection, failing() as said:
            connection.execute(sa.insert(ROW).values(id=1))
        assert said[0].startswith("takes no writes (") and "read-only option" in said[0]
        for each in (engine, admin):
            each.dispose()
