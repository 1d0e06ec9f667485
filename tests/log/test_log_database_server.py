"""Damage in a database is never skipped, and a server that is not durable is told."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from millstream.cli.main import run
from millstream.core.clock import SystemClock
from millstream.log import CorruptBlockError, DamagedLogError, Log, LogSpec, LogStore, MissingBlockError, open_store
from millstream.log.backends import mysql, postgres
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.mysql import server as mysql_server
from millstream.log.backends.mysql.statements import sql as mysql_sql
from millstream.log.backends.postgres import server as postgres_server
from millstream.log.backends.postgres.statements import sql as postgres_sql

SPEC = LogSpec("weather", block_messages=10)
MYSQL = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON", "log_bin": "OFF", "sync_binlog": "0"}
POSTGRES = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


def flip(connection: DatabaseConnection, table: str, first_id: int, position: int) -> None:
    ((data,),) = connection.rows(f"SELECT data FROM {table} WHERE first_id = ?", first_id)
    damaged = bytearray(data)
    damaged[position] ^= 4
    connection.execute(f"UPDATE {table} SET data = ? WHERE first_id = ?", bytes(damaged), first_id)


@pytest.mark.smoke
def test_damage_in_the_middle_is_never_skipped(log: Log, connection: DatabaseConnection, table: str) -> None:
    flip(connection, table, 21, 40)
    connection.execute(f"DELETE FROM {table} WHERE first_id = 41")
    seen: list[int] = []
    with pytest.raises(CorruptBlockError, match="begins at id 21 is damaged"):
        for batch in log.read():
            seen += [m.id for m in batch]
    assert seen == list(range(1, 21))
    with pytest.raises(MissingBlockError):
        list(log.read(31))
    assert len(log.verify().problems) == 2


def test_a_missing_tail_keeps_writers_out(log: Log, connection: DatabaseConnection, table: str) -> None:
    connection.execute(f"DELETE FROM {table} WHERE first_id = 41")
    with pytest.raises(DamagedLogError, match="should end at id 50"):
        log.writer()


def test_reading_by_id_uses_the_index(log: Log, connection: DatabaseConnection, table: str, store_url: str) -> None:
    with open_store(store_url) as store, store.log(SPEC).writer() as writer:
        for _ in range(100):
            writer.append([b"x"] * 10)
    if store_url.startswith("mysql:"):
        plan = connection.rows("EXPLAIN " + mysql_sql.BLOCK_RANGES.format(table), 500, 500, 500, 520, 10)
        outer = next(row for row in plan if row[1] == "PRIMARY")
        assert (outer[3], outer[5]) == ("range", "PRIMARY"), plan
        return
    values = "g, g, 1, 0, 0, 0, 0, 0, ''"
    connection.execute(f"INSERT INTO {table} SELECT {values} FROM generate_series(2000, 20000) AS g")
    connection.execute(f"ANALYZE {table}")
    shown = connection.rows("EXPLAIN " + postgres_sql.BLOCK_RANGES.format(table), 500, 500, 500, 520, 10)
    text = "\n".join(line for (line,) in shown)
    assert "Seq Scan" not in text, text
    assert text.count("Index") >= 2, text


def test_blocks_are_not_compressed_once_more_and_commits_touch_no_index(
    postgres_database: str,
) -> None:
    backend = postgres.PostgresBackend(postgres.parse_address(postgres_database), SystemClock())
    plain = LogSpec("plain", compression="plain")
    with LogStore(backend, SystemClock()) as store, store.log(plain).writer() as writer:
        writer.append([b"x" * 100_000])
        for _ in range(20):
            writer.append([b"x"])
        table = backend._table("plain")
        ((stored, length),) = backend._rows(
            f"SELECT pg_column_size(data), length(data) FROM {table} WHERE first_id = 1"
        )
        assert stored == length
        backend._rows("SELECT pg_stat_force_next_flush()")
        ((hot, updates),) = backend._rows(
            "SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'millstream_logs'"
        )
        assert hot >= 0.9 * updates > 0  # but where the row no longer fits into its page, which other tests share


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fsync"),
        ({"innodb_flush_log_at_trx_commit": "2"}, "os"),
        ({"innodb_flush_log_at_trx_commit": "0"}, "memory"),
        ({"innodb_doublewrite": "OFF"}, "os"),
        ({"log_bin": "ON"}, "os"),
        ({"log_bin": "ON", "sync_binlog": "1"}, "fsync"),
        ({"innodb_flush_method": "nosync"}, "os"),
    ],
)
def test_durability_in_mariadb_is_what_the_settings_give(changes: dict[str, str], expected: str) -> None:
    assert mysql_server.durability({**MYSQL, **changes}) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fsync"),
        ({"synchronous_commit": "local"}, "fsync"),
        ({"synchronous_commit": "off"}, "memory"),
        ({"fsync": "off"}, "os"),
        ({"full_page_writes": "off"}, "os"),
    ],
)
def test_durability_in_postgresql_is_what_the_settings_give(changes: dict[str, str], expected: str) -> None:
    assert postgres_server.durability({**POSTGRES, **changes}) == expected


Change = Callable[[str, int | str], None]


def test_a_server_that_is_not_durable_is_reported_by_info(log: Log, store_url: str, set_global: Change) -> None:
    assert log.info().durability == "fsync"
    if store_url.startswith("mysql:"):
        set_global("innodb_flush_log_at_trx_commit", 2)
        assert log.info().durability == "os"
        set_global("innodb_flush_log_at_trx_commit", 0)
        assert log.info().durability == "memory"
    else:
        set_global("full_page_writes", "off")
        assert log.info().durability == "os"


def test_a_server_that_confirms_too_early_does_not_do_so_for_a_log(postgres_database: str) -> None:
    place = postgres.parse_address(postgres_database)
    backend = postgres.PostgresBackend(place, SystemClock())
    with LogStore(backend, SystemClock()):
        backend._execute(f"ALTER DATABASE {place.database} SET synchronous_commit = off")
        try:
            with open_store(postgres_database) as later:
                assert later.log(SPEC).info().durability == "fsync"
            _, compared = postgres_server.compare_server(place)
            assert all(setting.ok for setting in compared if setting.name == "synchronous_commit")
        finally:
            backend._execute(f"ALTER DATABASE {place.database} RESET synchronous_commit")


def test_a_live_server_is_compared_with_the_settings_that_are_shipped(store_url: str, set_global: Change) -> None:
    is_postgres = store_url.startswith("postgresql:")
    setting, wrong, right = ("full_page_writes", "off", "on") if is_postgres else (
        "innodb_flush_log_at_trx_commit", "2", "1"
    )  # fmt: skip

    def compare() -> tuple[str, dict[str, mysql_server.Setting]]:
        version, compared = (
            postgres_server.compare_server(postgres.parse_address(store_url))
            if is_postgres
            else mysql_server.compare_server(mysql.parse_address(store_url))
        )
        return version, {found.name: found for found in compared}

    version, found = compare()
    shipped = (postgres_server if is_postgres else mysql_server).SHIPPED
    assert version[0].isdigit()
    assert found.keys() == {*shipped.settings(), *shipped.outside}, "the server knows all that is shipped"
    assert all(one.ok for one in found.values() if one.guards_durability), "tests run on a durable server"
    set_global(setting, wrong)
    one = compare()[1][setting]
    assert (one.ok, one.found, one.shipped, one.guards_durability) == (False, wrong, right, True)


def test_doctor_compares_the_server_of_the_store(
    store_url: str, set_global: Change, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    is_postgres = store_url.startswith("postgresql:")
    setting, wrong = ("full_page_writes", "off") if is_postgres else ("innodb_flush_log_at_trx_commit", "2")
    set_global(setting, wrong)
    assert run(["doctor", "--json", "--store", store_url]) == 1
    checks = {row["name"]: row for row in map(json.loads, capfdbinary.readouterr().out.splitlines())}
    assert checks["log server"]["ok"]
    assert not checks[setting]["ok"]
    assert f"{setting} = {'on' if is_postgres else 1}" in checks[setting]["fix"]
