"""What goes into a server comes out of it: values of every kind, and blocks larger than one statement."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log import Log, LogSpec, open_store
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.backends.mysql.statements import sql
from millstream.log.backends.postgres import backend as postgres_backend
from millstream.testing.databases import connected

SPEC = LogSpec("large", compression="plain")


class Noise:
    """Bytes that do not compress, the same in every run, with many that have to be escaped."""

    def __init__(self) -> None:
        self._draw = random.Random(1)

    def __call__(self, size: int) -> bytes:
        return self._draw.randbytes(size // 2) + b"\\'" * (size - size // 2)


@pytest.fixture(params=["mysql", "postgresql"])
def small_statements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store to which a statement has a mebibyte at most."""
    if request.param == "postgresql":
        monkeypatch.setattr(postgres_backend, "STATEMENT_BYTES", 1 << 20)
        url: str = request.getfixturevalue("postgres_database")
        return url
    url = request.getfixturevalue("database")
    request.getfixturevalue("set_packet")(1 << 20)
    return url


@pytest.mark.parametrize("column", ["min_event_time", "max_event_time", "min_received_at", "max_received_at", "epoch"])
def test_an_index_that_is_not_what_the_blocks_say_is_found(
    log: Log, connection: DatabaseConnection, column: str
) -> None:
    assert log.verify().ok
    ((table,),) = connection.rows("SELECT blocks FROM millstream_logs WHERE name = ?", "weather")
    connection.execute(f"UPDATE {_text(table)} SET {column} = {column} + 8 WHERE first_id = 21")
    (problem,) = log.verify().problems
    assert f"of the block with ids 21 to 30 is wrong: {column} " in problem


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.fixture
def set_packet(mariadb: str) -> Any:
    """A function that sets how large a packet may be, until the test is over."""
    with connected(f"{mariadb}mysql") as connection:
        ((before,),) = connection.rows("SELECT @@GLOBAL.max_allowed_packet")
        yield lambda size: connection.execute("SET GLOBAL max_allowed_packet = ?", size)
        connection.execute("SET GLOBAL max_allowed_packet = ?", before)


def test_blocks_larger_than_a_statement_are_stored_and_read_back_whole(small_statements: str) -> None:
    noise = Noise()
    bodies = [noise(3 << 20), noise(10), *[noise(100_000) for _ in range(20)]]
    with open_store(small_statements) as store:
        with store.log(SPEC).writer() as writer:
            writer.append(bodies)
        log = store.log(SPEC)
        assert [m.body for batch in log.read() for m in batch] == bodies
        assert log.verify().ok
        assert log.info().blocks == len(log.block_ranges()) > 2
        assert log.info().count == 22


def test_more_blocks_than_a_statement_takes_are_one_commit(postgres_database: str) -> None:
    spec = LogSpec("many", block_messages=1)
    with open_store(postgres_database) as store, store.log(spec).writer() as writer:
        assert writer.append([b"%d" % n for n in range(1201)], sequence=1) is not None
        assert store.log(spec).verify().blocks == 1201


def test_a_packet_limit_that_is_lowered_meanwhile_is_respected(
    database: str, set_packet: Callable[[int], None]
) -> None:
    noise = Noise()
    with open_store(database) as store, store.log(SPEC).writer() as writer:
        writer.append([noise(2 << 20)])
        set_packet(1 << 20)
        writer.append([noise(3 << 20)])
        assert store.log(SPEC).verify().messages == 2


@settings(max_examples=30)
@given(blob=st.binary(max_size=300), text=st.text(max_size=30), number=st.integers(-(2**63), 2**63 - 1))
def test_every_value_comes_to_mariadb_as_it_is(mariadb: str, blob: bytes, text: str, number: int) -> None:
    place = parse_address(f"{mariadb}mysql?driver=text")
    connection = choose_driver(place)(place)
    connection.execute(sql.SESSION)
    ((length, shown, same, given_number),) = connection.rows(
        "SELECT LENGTH(?), HEX(?), CAST(? AS BINARY), CAST(? AS SIGNED)", blob, blob, text, number
    )
    connection.close()
    found = (int(length), bytes.fromhex(plain(shown)), plain(same), int(given_number))
    assert found == (len(blob), blob, text, number)


@settings(max_examples=30)
@given(
    blob=st.binary(max_size=300),
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
    number=st.integers(-(2**63), 2**63 - 1),
)
def test_every_value_comes_to_postgresql_and_back_as_it_is(
    postgresql: str, blob: bytes, text: str, number: int
) -> None:
    with connected(f"{postgresql}postgres") as connection:
        ((length, same_blob, same_text, same_number),) = connection.rows(
            "SELECT length(?), ?, ?, ?", blob, blob, text, number
        )
    assert (length, same_blob, same_text, same_number) == (len(blob), blob, text, number)


def plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
