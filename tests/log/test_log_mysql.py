"""What is particular to logs in MariaDB and MySQL: passwords, lost replies, packets, settings of the server, damage."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.log import (
    CorruptBlockError,
    DamagedLogError,
    FencedError,
    IdRange,
    Log,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    LogStore,
    MissingBlockError,
    StorageBusyError,
    StorageError,
    StorageReadOnlyError,
    StorageUnavailableError,
    WriterFailedError,
    open_store,
)
from millstream.log.mysql import MysqlBackend, masked, parse_place
from millstream.log.mysql import statements as sql
from millstream.log.mysql.driver import Connection, ServerError, choose_driver
from millstream.log.mysql.server import compare_server, durability, shipped_settings
from millstream.testing.faulty_connection import DEADLOCK, LOCK_WAIT, Fault, FaultyDriver

SPEC = LogSpec("weather", block_messages=10)
PATIENCE = 30.0
DURABLE = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON", "log_bin": "OFF", "sync_binlog": "0"}


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """A connection to do to the server what a fault, or an administrator, would do."""
    place = parse_place(database)
    connection = choose_driver(place)(place)
    connection.execute("SET autocommit = 1")
    yield connection
    connection.close()


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    """A log of 50 messages in five blocks."""
    with open_store(database) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 51)])
        yield log


@pytest.fixture
def table(log: Log, connection: Connection) -> str:
    """The table of the log's blocks."""
    ((name,),) = connection.rows(sql.LOG_BLOCKS, SPEC.name)
    return str(name)


@pytest.fixture
def set_global(connection: Connection) -> Iterator[Callable[[str, int], None]]:
    """A function that changes a setting of the server until the test is over."""
    before: dict[str, int] = {}

    def change(name: str, value: int) -> None:
        ((found,),) = connection.rows(f"SELECT @@GLOBAL.{name}")
        before.setdefault(name, found)
        connection.execute(f"SET GLOBAL {name} = ?", value)

    yield change
    for name, value in before.items():
        connection.execute(f"SET GLOBAL {name} = ?", value)


# Passwords and places


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@host:port/db",
        "mysql://me:s3cret@host:70000/db",
        "mysql://me:s3cret@host/",
        "mysql://me:s3cret@host/a/b",
        "mysql://me:s3cret@host/a`b",
        "mysql://me:s3cret@host/db?colour=red",
        "mysql://me:s3cret@host/db?driver=fast",
        "mysql://me:s3cret@host/db?password_file=/x",
        "mysql://me:s3cret/or@@#@host/db",
        "mysq://me:s3cret@host/db",
        "mysql://me:***@host/db",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(LogInputError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)
    assert "me:***@" in str(caught.value)


def test_a_place_shows_itself_without_its_password() -> None:
    place = parse_place("mysql://m%40e:s3%2Fcret@[::1]:3307/db?driver=text")
    assert (place.user, place.password, place.host, place.port) == ("m@e", "s3/cret", "::1", 3307)
    for shown in (place.url, repr(place), f"{place}", repr([place])):
        assert "s3" not in shown
        assert "mysql://m%40e:***@[::1]:3307/db?driver=text" in shown
    assert masked("sqlite:///a/b.db") == "sqlite:///a/b.db"


def test_a_password_file_makes_a_url_that_shows_nothing_and_opens_again(database: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret'\\\n")
    account, _, rest = database.rpartition("@")
    assert account == "mysql://root"
    place = parse_place(f"mysql://root@{rest}?password_file={file}")
    assert place.password == "s3cret'\\"
    assert parse_place(place.url) == place
    with pytest.raises(LogInputError, match="cannot be read"):
        parse_place(f"mysql://root@{rest}?password_file={file}.not")


@pytest.mark.parametrize("driver", ["text", "binary"])
def test_an_account_with_a_password_gets_in_and_a_wrong_password_is_not_shown(
    database: str, connection: Connection, driver: str
) -> None:
    if driver == "binary":
        pytest.importorskip("mariadb", reason="pip install 'millstream[mysql-binary]'")
    connection.execute("CREATE OR REPLACE USER 'mill'@'%' IDENTIFIED BY 's3cret'")
    connection.execute("GRANT ALL ON *.* TO 'mill'@'%'")
    rest = database.rpartition("@")[2]
    with open_store(f"mysql://mill:s3cret@{rest}?driver={driver}") as store:
        store.log(SPEC)
        assert store.url == f"mysql://mill:***@{rest}?driver={driver}"
        with pytest.raises(LogNotFoundError) as caught:
            store.log(LogSpec("none"), create=False)
        assert "s3cret" not in str(caught.value)
        with pytest.raises(LogInputError, match="put it in again"):
            open_store(store.url)
    with pytest.raises(StorageError, match="check user and password") as denied:
        open_store(f"mysql://mill:wr0ng@{rest}?driver={driver}")
    assert "wr0ng" not in "".join(map(str, (denied.value, denied.value.__cause__)))


# Opening


def test_a_database_is_made_only_for_writing(mariadb: str, connection: Connection) -> None:
    url = f"{mariadb}test_absent"
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(LogNotFoundError, match="check the URL"):
            open_store(url, **options)
    assert not connection.rows("SHOW DATABASES LIKE 'test_absent'")


def test_processes_that_make_the_same_database_at_once_all_get_it(mariadb: str, connection: Connection) -> None:
    url = f"{mariadb}test_at_once"
    code = "import sys; from millstream.log import *; print(open_store(sys.argv[1]).log(LogSpec('shared')).name)"
    makers = [subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [maker.communicate(timeout=60)[0] for maker in makers] == ["shared\n"] * 3
    connection.execute("DROP DATABASE test_at_once")


def test_read_only_reads_and_refuses_to_write(log: Log, database: str) -> None:
    with open_store(database, read_only=True) as store:
        readable = store.log(SPEC, create=False)
        assert sum(len(batch) for batch in readable.read()) == 50
        for write in (readable.writer, lambda: store.log(LogSpec("new")), lambda: readable.set_pointer("x", 3)):
            with pytest.raises(StorageReadOnlyError):
                write()


def test_a_store_of_a_newer_format_is_refused(log: Log, database: str, connection: Connection) -> None:
    connection.execute("INSERT INTO millstream_format VALUES (99)")
    try:
        with pytest.raises(StorageError, match="format 99"):
            open_store(database)
    finally:
        connection.execute("DELETE FROM millstream_format WHERE version = 99")


def test_a_closed_store_says_so(database: str) -> None:
    store = open_store(database)
    log = store.log(SPEC)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        log.info()


def test_a_name_that_is_too_long_for_a_key_is_refused(log: Log) -> None:
    log.set_pointer("ü€𝄞" * 85, 1)
    with pytest.raises(LogInputError, match="shorter name"):
        log._backend.put_state(SPEC.name, "x" * 2000, b"", version=0)


# Replies that are lost, and transactions in the way


STEPS = ["START", "UPDATE", "INSERT INTO blocks", "INSERT INTO millstream_states", "COMMIT"]
FAULTS = [Fault(step, when) for step in STEPS for when in ("before", "after")]
FAULTS += [
    Fault("UPDATE", "before", LOCK_WAIT),
    Fault("INSERT", "before", DEADLOCK),
    Fault("COMMIT", "before", DEADLOCK),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.statement} {fault.when} {fault.number}")
def test_a_commit_whose_reply_is_lost_is_done_exactly_once(database: str, fault: Fault) -> None:
    with faulty_store(database) as (store, driver), store.log(SPEC).writer("importer") as writer:
        writer.append([b"before"], sequence=1)
        driver.faults.append(fault)
        assert writer.append([b"in"] * 12, sequence=2) == IdRange(2, 13)
        assert not driver.faults, "the fault has happened"
        assert writer.append([b"after"], sequence=3) == IdRange(14, 14)
        bodies = [m.body for batch in store.log(SPEC).read() for m in batch]
        assert bodies == [b"before", *[b"in"] * 12, b"after"]
        assert store.log(SPEC).verify().ok


@pytest.mark.parametrize("fault", [Fault("UPDATE millstream_logs SET epoch", when) for when in ("before", "after")])
def test_a_lease_whose_reply_is_lost_is_held(database: str, fault: Fault) -> None:
    with faulty_store(database) as (store, driver):
        log = store.log(SPEC)
        driver.faults.append(fault)
        with log.writer() as writer:
            assert writer.append([b"a"]) == IdRange(1, 1)


@pytest.mark.parametrize("statement", ["INSERT INTO millstream_states", "UPDATE millstream_states"])
def test_an_acknowledgement_whose_reply_is_lost_does_not_fence_its_reader(database: str, statement: str) -> None:
    with faulty_store(database) as (store, driver):
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"a", b"b"])
        log.set_pointer("worker" if statement.startswith("UPDATE") else "other", 0)
        driver.faults.append(Fault(statement, "after"))
        with log.reader("worker") as reader:
            reader.ack(1)
            reader.flush()
            reader.ack(2)
        assert not driver.faults
        assert log.pointer("worker") == 2


def test_a_commit_that_comes_after_a_take_over_is_fenced_though_its_connection_broke(database: str) -> None:
    with faulty_store(database) as (store, driver), open_store(database) as other:
        stale = store.log(SPEC).writer()
        stale.append([b"a"])
        stale._committer._backend.release_lease(SPEC.name, epoch=1)
        with other.log(SPEC).writer() as writer:
            writer.append([b"theirs"])
        driver.faults.append(Fault("COMMIT"))
        driver.faults.append(Fault("UPDATE"))
        with pytest.raises(FencedError):
            stale.append([b"too late"])
        stale.close()
        assert [m.body for batch in store.log(SPEC).read() for m in batch] == [b"a", b"theirs"]


def test_p10_one_writer_one_that_hangs_inside_a_transaction_is_ended_by_the_server(
    log: Log, connection: Connection
) -> None:
    connection.execute(sql.SESSION)
    connection.execute("SET SESSION idle_transaction_timeout = 1")
    connection.execute(sql.BEGIN)
    assert connection.execute(sql.MOVE_POINTER, 60, 1, SPEC.name, 1, 50) == 1
    with log.writer() as writer:
        assert writer.append([b"a"]) == IdRange(51, 51)
    with pytest.raises(ServerError):
        connection.execute(sql.COMMIT)
    assert log.last_id == 51


def test_an_outage_is_logged_once_and_so_is_its_end(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with faulty_store(database) as (store, driver), caplog.at_level(logging.INFO), store.log(SPEC).writer() as w:
        driver.faults.extend([Fault("START")] * 7)
        w.append([b"a"])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "trying again" in told[0]
    assert "it is back" in told[1]


def test_patience_ends_and_the_error_says_what_to_see_to(database: str) -> None:
    with faulty_store(database) as (store, driver):
        log = store.log(SPEC)
        driver.faults.extend([Fault("SELECT")] * 2000)
        with pytest.raises(StorageUnavailableError, match="see that the server runs"):
            log.info()
        assert driver.connections > PATIENCE / 2, "its patience with pauses of two seconds at most"
        driver.faults.clear()
        driver.faults.extend([Fault("SELECT", number=LOCK_WAIT)] * 2000)
        with pytest.raises(StorageBusyError, match="another transaction"):
            log.info()
        driver.faults.clear()


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    pytest.importorskip("pymysql")
    with pytest.raises(StorageUnavailableError, match=r"mysql://me:\*\*\*@127.0.0.1:1/db: .*see that the server runs"):
        open_store("mysql://me:s3cret@127.0.0.1:1/db")


def test_a_server_that_becomes_read_only_is_named_and_the_writer_stops(
    database: str, connection: Connection, set_global: Callable[[str, int], None]
) -> None:
    connection.execute("CREATE OR REPLACE USER 'reader'@'%' IDENTIFIED BY 's3cret'")
    connection.execute(f"GRANT ALL ON {parse_place(database).database}.* TO 'reader'@'%'")
    with open_store(f"mysql://reader:s3cret@{database.rpartition('@')[2]}") as store:
        writer = store.log(SPEC).writer()
        writer.append([b"a"])
        set_global("read_only", 1)
        with pytest.raises(WriterFailedError, match="can only be read") as caught:
            writer.append([b"b"])
        assert isinstance(caught.value.__cause__, StorageReadOnlyError)
        with pytest.raises(StorageReadOnlyError):
            writer.close()
        assert store.log(SPEC).last_id == 1


# Packets


def test_blocks_larger_than_a_packet_are_cut_to_fit_and_read_back_whole(
    database: str, set_global: Callable[[str, int], None]
) -> None:
    set_global("max_allowed_packet", 1 << 20)
    noise = Noise()
    bodies = [noise(3 << 20), noise(10), *[noise(100_000) for _ in range(20)]]
    spec = LogSpec("large", compression="plain")
    with open_store(database) as store:
        with store.log(spec).writer() as writer:
            writer.append(bodies)
        log = store.log(spec)
        assert [m.body for batch in log.read() for m in batch] == bodies
        assert log.verify().ok
        assert log.info().blocks == len(log.block_ranges()) > 2
        assert log.info().count == 22


def test_a_packet_limit_that_is_lowered_meanwhile_is_respected(
    database: str, set_global: Callable[[str, int], None]
) -> None:
    noise = Noise()
    with open_store(database) as store, store.log(LogSpec("large", compression="plain")).writer() as writer:
        writer.append([noise(2 << 20)])
        set_global("max_allowed_packet", 1 << 20)
        writer.append([noise(3 << 20)])
        assert store.log(LogSpec("large")).verify().messages == 2


class Noise:
    """Bytes that do not compress, the same in every run, with many that have to be escaped."""

    def __init__(self) -> None:
        self._draw = random.Random(1)

    def __call__(self, size: int) -> bytes:
        return self._draw.randbytes(size // 2) + b"\\'" * (size - size // 2)


@pytest.mark.parametrize("driver", ["text", "binary"])
@settings(max_examples=30)
@given(blob=st.binary(max_size=300), text=st.text(max_size=30), number=st.integers(-(2**63), 2**63 - 1))
def test_every_value_comes_to_the_server_as_it_is(
    mariadb: str, driver: str, blob: bytes, text: str, number: int
) -> None:
    if driver == "binary":
        pytest.importorskip("mariadb", reason="pip install 'millstream[mysql-binary]'")
    place = parse_place(f"{mariadb}mysql?driver={driver}")
    connection = choose_driver(place)(place)
    connection.execute(sql.SESSION)
    ((length, shown, same, given_number),) = connection.rows(
        "SELECT LENGTH(?), HEX(?), CAST(? AS BINARY), CAST(? AS SIGNED)", blob, blob, text, number
    )
    connection.close()
    found = (int(length), bytes.fromhex(plain(shown)), plain(same), int(given_number))
    assert found == (len(blob), blob, text, number)


def plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# Damage


def flip(connection: Connection, table: str, first_id: int, position: int) -> None:
    ((data,),) = connection.rows(f"SELECT data FROM {table} WHERE first_id = ?", first_id)
    damaged = bytearray(data)
    damaged[position] ^= 4
    connection.execute(f"UPDATE {table} SET data = ? WHERE first_id = ?", bytes(damaged), first_id)


def test_damage_in_the_middle_is_never_skipped(log: Log, connection: Connection, table: str) -> None:
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


def test_a_missing_tail_keeps_writers_out(log: Log, connection: Connection, table: str) -> None:
    connection.execute(f"DELETE FROM {table} WHERE first_id = 41")
    with pytest.raises(DamagedLogError, match="should end at id 50"):
        log.writer()


def test_reading_by_id_uses_the_index(log: Log, connection: Connection, table: str) -> None:
    with open_store(log._around.backend.url) as store, store.log(SPEC).writer() as writer:
        for _ in range(100):
            writer.append([b"x"] * 10)
    plan = connection.rows("EXPLAIN " + sql.BLOCK_RANGES.format(table), 500, 500, 500, 520, 10)
    outer = next(row for row in plan if row[1] == "PRIMARY")
    assert outer[3] == "range", plan
    assert outer[5] == "PRIMARY", plan


# The server's settings


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
def test_durability_is_what_the_settings_give(changes: dict[str, str], expected: str) -> None:
    assert durability({**DURABLE, **changes}) == expected


def test_a_server_that_is_not_durable_is_reported_by_info(log: Log, set_global: Callable[[str, int], None]) -> None:
    assert log.info().durability == "fsync"
    set_global("innodb_flush_log_at_trx_commit", 2)
    assert log.info().durability == "os"
    set_global("innodb_flush_log_at_trx_commit", 0)
    assert log.info().durability == "memory"


def test_a_live_server_is_compared_with_the_settings_that_are_shipped(
    database: str, set_global: Callable[[str, int], None]
) -> None:
    version, compared = compare_server(parse_place(database))
    assert version[0].isdigit()
    found = {setting.name: setting for setting in compared}
    assert found.keys() == shipped_settings().keys(), "MariaDB knows all that is shipped"
    assert found["innodb_flush_log_at_trx_commit"].ok
    set_global("innodb_flush_log_at_trx_commit", 2)
    _, compared = compare_server(parse_place(database))
    wrong = next(setting for setting in compared if setting.name == "innodb_flush_log_at_trx_commit")
    assert (wrong.ok, wrong.found, wrong.shipped, wrong.guards_durability) == (False, "2", "1", True)


def test_doctor_compares_the_server_of_the_store(
    database: str, set_global: Callable[[str, int], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    set_global("innodb_flush_log_at_trx_commit", 2)
    assert run(["doctor", "--json", "--store", database]) == 1
    checks = {row["name"]: row for row in map(json.loads, capfdbinary.readouterr().out.splitlines())}
    assert checks["log server"]["ok"]
    assert not checks["innodb_flush_log_at_trx_commit"]["ok"]
    assert "innodb_flush_log_at_trx_commit = 1" in checks["innodb_flush_log_at_trx_commit"]["fix"]


def test_doctor_and_config_do_not_show_a_password(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pymysql")
    url = "mysql://me:s3cret@127.0.0.1:1/db"
    monkeypatch.setenv("MILLSTREAM_LOG__STORE", url)
    assert run(["doctor", "--store", url]) == 1
    assert run(["config", "show"]) == 0
    assert run(["log", "ls"]) == 1
    shown = "".join(capfd.readouterr())
    assert "mysql://me:***@127.0.0.1:1/db" in shown
    assert "s3cret" not in shown


# What the tests stand on


@contextlib.contextmanager
def faulty_store(database: str) -> Iterator[tuple[LogStore, FaultyDriver]]:
    """A store on a virtual clock, whose pauses take no time, and the driver that makes it fail."""
    place, clock = parse_place(database), VirtualClock()
    driver = FaultyDriver(choose_driver(place))
    with LogStore(MysqlBackend(place, clock, driver=driver, patience=PATIENCE), clock) as store:
        try:
            yield store, driver
        finally:
            driver.faults.clear()
