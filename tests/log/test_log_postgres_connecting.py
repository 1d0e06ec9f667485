"""Connecting to a database of PostgreSQL that is absent, or that another process makes at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millstream.log.backends.database.driver import ServerError
from millstream.log.backends.postgres import driver, parse_address
from millstream.log.backends.postgres.error_codes import CONNECTION_LOST, UNKNOWN_DATABASE

ADDRESS = parse_address("postgresql://me@host/logs")


class Server:
    """A server that refuses the database ``logs`` *refusals* times, and that does or does not list it."""

    def __init__(self, refusals: int, listed: bool | None) -> None:
        self.refusals, self.listed = refusals, listed
        self.connections: list[str] = []

    def connect(self, address: object, database: str) -> Any:
        self.connections.append(database)
        if database == "logs":
            self.refusals -= 1
            if self.refusals >= 0:
                raise ServerError(CONNECTION_LOST, "no such database")
        elif self.listed is None:
            raise ServerError(CONNECTION_LOST, "no answer")
        return self

    def rows(self, statement: str, *values: object) -> Sequence[tuple[int]]:
        assert "pg_database" in statement
        assert values == ("logs",)
        return [(1,)] if self.listed else []

    def close(self) -> None:
        self.connections.append("closed")


def test_a_database_that_another_process_has_just_made_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(refusals=1, listed=True)
    monkeypatch.setattr(driver, "_connected", server.connect)
    assert driver.connect(ADDRESS) is server
    assert server.connections == ["logs", "postgres", "closed", "logs"]


def test_a_database_that_the_server_does_not_list_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_connected", Server(refusals=1, listed=False).connect)
    with pytest.raises(ServerError) as caught:
        driver.connect(ADDRESS)
    assert caught.value.code == UNKNOWN_DATABASE


@pytest.mark.parametrize(("refusals", "listed"), [(2, True), (1, None)])
def test_a_server_that_goes_on_refusing_or_does_not_answer_is_lost(
    monkeypatch: pytest.MonkeyPatch, refusals: int, listed: bool | None
) -> None:
    monkeypatch.setattr(driver, "_connected", Server(refusals, listed).connect)
    with pytest.raises(ServerError) as caught:
        driver.connect(ADDRESS)
    assert caught.value.code == CONNECTION_LOST
