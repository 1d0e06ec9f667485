"""Statements with large values go to MariaDB prepared, over the same connection as all others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.log.backends.database.driver import ServerError
from millstream.log.backends.mysql import parse_address, pymysql_wire
from millstream.log.backends.mysql.prepared import MAX_PREPARED
from millstream.log.backends.mysql.pymysql_connection import PymysqlConnection, connect_pymysql

LARGE = bytes(range(256)) * 8


class DocumentedParts:
    """A connection of PyMySQL without the parts that PyMySQL does not document, as a later release may be."""

    def __init__(self, connection: Any) -> None:
        self._whole = connection

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole, name)


def with_table(connection: PymysqlConnection) -> PymysqlConnection:
    connection.execute("SET autocommit = 1")
    connection.execute(
        "CREATE TEMPORARY TABLE kept (id BIGINT UNSIGNED PRIMARY KEY, number BIGINT, name VARBINARY(400), "
        "data LONGBLOB)"
    )
    return connection


@pytest.fixture(scope="module")
def connection(mariadb: str) -> Iterator[PymysqlConnection]:
    """A connection with an empty temporary table."""
    with contextlib.closing(connect_pymysql(parse_address(f"{mariadb}mysql"))) as connection:
        yield with_table(connection)


@pytest.fixture
def table(connection: PymysqlConnection) -> PymysqlConnection:
    connection.execute("DELETE FROM kept")
    return connection


def insert(connection: PymysqlConnection, *rows: tuple[Any, ...]) -> int:
    values = [value for row in rows for value in row]
    return connection.execute("INSERT INTO kept VALUES " + ", ".join(["(?, ?, ?, ?)"] * len(rows)), *values)


@settings(max_examples=15, deadline=None)
@given(
    number=st.integers(-(2**63), 2**63 - 1),
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=100),
    data=st.binary(max_size=300),
    size=st.sampled_from([1024, 1 << 16, (1 << 16) - 1]),
)
@example(number=-(2**63), name="\0'\\;", data=b"", size=17 << 20)
def test_every_value_is_stored_as_it_is(
    connection: PymysqlConnection, number: int, name: str, data: bytes, size: int
) -> None:
    connection.execute("DELETE FROM kept")
    data += bytes(size)
    assert insert(connection, (2**64 - 1, number, name, data)) == 1
    ((same_id, same_number, same_name, same_data),) = connection.rows("SELECT * FROM kept")
    assert (same_id, same_number, same_name, same_data) == (2**64 - 1, number, name.encode(), data)


def test_without_the_undocumented_parts_of_the_driver_values_are_stored_too_and_that_is_logged(
    mariadb: str, caplog: pytest.LogCaptureFixture
) -> None:
    pymysql_wire._warn_once.cache_clear()
    whole = connect_pymysql(parse_address(f"{mariadb}mysql"))._connection
    with contextlib.closing(with_table(PymysqlConnection(DocumentedParts(whole)))) as plain:
        PymysqlConnection(DocumentedParts(whole))
        assert insert(plain, (2**64 - 1, -5, "\0'\\;", LARGE), (1, 5, "b", b"")) == 2
        assert plain.rows("SELECT * FROM kept ORDER BY number") == (
            (2**64 - 1, -5, b"\0'\\;", LARGE),
            (1, 5, b"b", b""),
        )
        ((_, prepared),) = plain.rows("SHOW SESSION STATUS LIKE 'Com_stmt_prepare'")
        assert prepared == "0"
    assert caplog.text.count("has no prepared statements") == 1
    assert not whole.open


def test_many_rows_go_in_one_statement_and_are_counted(table: PymysqlConnection) -> None:
    assert insert(table, *((number, -number, "x", LARGE) for number in range(1, 51))) == 50
    assert table.execute("UPDATE kept SET data = ? WHERE id > ?", LARGE + b"x", 40) == 10
    assert [n for (n,) in table.rows("SELECT count(*) FROM kept WHERE length(data) > ?", len(LARGE))] == [10]


def test_a_statement_that_fails_says_why_and_the_connection_goes_on(table: PymysqlConnection) -> None:
    insert(table, (1, 1, "x", LARGE))
    with pytest.raises(ServerError) as duplicate:
        insert(table, (1, 1, "x", LARGE))
    assert duplicate.value.code == 1062
    with pytest.raises(ServerError, match="no_such_table"):
        table.execute("INSERT INTO no_such_table VALUES (?)", LARGE)
    with pytest.raises(ValueError, match="2 values for 1 placeholders"):
        table.execute("UPDATE kept SET data = ?", LARGE, 1)
    assert insert(table, (2, 1, "x", LARGE)) == 1


def test_statements_that_are_used_least_make_room(table: PymysqlConnection) -> None:
    def prepared() -> int:
        ((_, count),) = table.rows("SHOW SESSION STATUS LIKE 'Com_stmt_prepare'")
        ((_, closed),) = table.rows("SHOW SESSION STATUS LIKE 'Com_stmt_close'")
        return int(count) - int(closed)

    before = prepared()
    for number in range(3 * MAX_PREPARED):
        table.execute(f"UPDATE kept SET data = ? WHERE id = {number}", LARGE)
        insert(table, (number + 1, 1, "x", LARGE))
    assert prepared() - before <= MAX_PREPARED


def test_a_connection_that_is_lost_is_an_error_of_the_server(mariadb: str) -> None:
    place = parse_address(f"{mariadb}mysql")
    with contextlib.closing(connect_pymysql(place)) as lost, contextlib.closing(connect_pymysql(place)) as other:
        ((number,),) = lost.rows("SELECT CONNECTION_ID()")
        other.execute(f"KILL {number}")
        with pytest.raises(ServerError) as error:
            lost.execute("SELECT ? INTO @x", LARGE)
        assert error.value.code in {pymysql.constants.CR.CR_SERVER_LOST, pymysql.constants.CR.CR_SERVER_GONE_ERROR}
