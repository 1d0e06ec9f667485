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
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.mysql.prepared import MAX_PREPARED
from millstream.log.backends.mysql.text_driver import TextConnection, connect_text

LARGE = bytes(range(256)) * 8


@pytest.fixture(scope="module")
def connection(mariadb: str) -> Iterator[TextConnection]:
    """A connection with an empty temporary table."""
    with contextlib.closing(connect_text(parse_address(f"{mariadb}mysql"))) as connection:
        connection.execute("SET autocommit = 1")
        connection.execute(
            "CREATE TEMPORARY TABLE kept (id BIGINT UNSIGNED PRIMARY KEY, number BIGINT, name VARBINARY(400), "
            "data LONGBLOB)"
        )
        yield connection


@pytest.fixture
def table(connection: TextConnection) -> TextConnection:
    connection.execute("DELETE FROM kept")
    return connection


def insert(connection: TextConnection, *rows: tuple[Any, ...]) -> int:
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
    connection: TextConnection, number: int, name: str, data: bytes, size: int
) -> None:
    connection.execute("DELETE FROM kept")
    data += bytes(size)
    assert insert(connection, (2**64 - 1, number, name, data)) == 1
    ((same_id, same_number, same_name, same_data),) = connection.rows("SELECT * FROM kept")
    assert (same_id, same_number, same_name, same_data) == (2**64 - 1, number, name.encode(), data)


def test_many_rows_go_in_one_statement_and_are_counted(table: TextConnection) -> None:
    assert insert(table, *((number, -number, "x", LARGE) for number in range(1, 51))) == 50
    assert table.execute("UPDATE kept SET data = ? WHERE id > ?", LARGE + b"x", 40) == 10
    assert [n for (n,) in table.rows("SELECT count(*) FROM kept WHERE length(data) > ?", len(LARGE))] == [10]


def test_a_statement_that_fails_says_why_and_the_connection_goes_on(table: TextConnection) -> None:
    insert(table, (1, 1, "x", LARGE))
    with pytest.raises(ServerError) as duplicate:
        insert(table, (1, 1, "x", LARGE))
    assert duplicate.value.code == 1062
    with pytest.raises(ServerError, match="no_such_table"):
        table.execute("INSERT INTO no_such_table VALUES (?)", LARGE)
    with pytest.raises(ValueError, match="2 values for 1 places"):
        table.execute("UPDATE kept SET data = ?", LARGE, 1)
    assert insert(table, (2, 1, "x", LARGE)) == 1


def test_statements_that_are_used_least_make_room(table: TextConnection) -> None:
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
    with contextlib.closing(connect_text(place)) as lost, contextlib.closing(connect_text(place)) as other:
        ((number,),) = lost.rows("SELECT CONNECTION_ID()")
        other.execute(f"KILL {number}")
        with pytest.raises(ServerError) as error:
            lost.execute("SELECT ? INTO @x", LARGE)
        assert error.value.code in {pymysql.constants.CR.CR_SERVER_LOST, pymysql.constants.CR.CR_SERVER_GONE_ERROR}
