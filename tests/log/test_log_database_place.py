"""Database servers as places for logs: URLs, passwords, and what is made when a store is opened."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.core.secrets import safe_url
from millstream.log import (
    Log,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    StorageError,
    StorageReadOnlyError,
    StorageUnavailableError,
    open_store,
)
from millstream.log.backends import mysql, postgres
from millstream.log.backends.database.address import DatabaseAddress
from millstream.log.backends.database.driver import DatabaseConnection

SPEC = LogSpec("weather", block_messages=10)
PARSERS: dict[str, Callable[[str], DatabaseAddress]] = {
    "mysql": mysql.parse_address,
    "postgresql": postgres.parse_address,
}


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
@pytest.mark.parametrize(
    "rest",
    [
        "://me:s3cret@host:port/db",
        "://me:s3cret@host:70000/db",
        "://me:s3cret@host/",
        "://me:s3cret@host/a/b",
        "://me:s3cret@host/a`b",
        '://me:s3cret@host/a"b',
        "://me:s3cret@host/db?colour=red",
        "://me:s3cret@host/db?driver=fast",
        "://me:s3cret@host/db?password_file=/x",
        "://me:s3cret/or@@#@host/db",
        "x://me:s3cret@host/db",
        "://me:***@host/db",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(scheme: str, rest: str) -> None:
    with pytest.raises(LogInputError) as caught:
        open_store(scheme + rest)
    assert "s3cret" not in str(caught.value)
    assert "me:***@" in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "option"), [("mysql", "driver=text"), ("postgresql", "tls_cert=/our.crt&tls_key=/our.key")]
)
def test_a_place_shows_itself_without_its_password(scheme: str, option: str) -> None:
    place = PARSERS[scheme](f"{scheme}://m%40e:s3%2Fcret@[::1]:3307/db?{option}")
    assert (place.user, place.password, place.host, place.port) == ("m@e", "s3/cret", "::1", 3307)
    for shown in (place.url, repr(place), f"{place}", repr([place])):
        assert "s3" not in shown
        assert f"{scheme}://m%40e:***@[::1]:3307/db?{option}" in shown
    assert safe_url("sqlite:///a/b.db") == "sqlite:///a/b.db"


def test_a_password_file_makes_a_url_that_shows_nothing_and_opens_again(store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret'\\\n")
    parse = PARSERS[store_url.partition(":")[0]]
    place = parse(f"{store_url}?password_file={file}")
    assert place.password == "s3cret'\\"
    assert parse(place.url) == place
    with pytest.raises(LogInputError, match=r"cannot read the password file .*password\.not"):
        parse(f"{store_url}?password_file={file}.not")


def test_a_driver_that_is_no_longer_supported_is_refused_with_what_to_do() -> None:
    for layout in ("", "&layout=nerve"):
        with pytest.raises(LogInputError, match="remove driver=binary from the URL") as caught:
            open_store(f"mysql://me:s3cret@host/db?driver=binary{layout}")
        assert "me:***@" in str(caught.value)


def test_an_account_with_a_password_gets_in_and_a_wrong_password_is_not_shown(
    store_url: str, connection: DatabaseConnection
) -> None:
    make_account(connection, store_url)
    scheme, _, rest = store_url.partition("://")
    rest = rest.rpartition("@")[2]
    with open_store(f"{scheme}://mill:s3cret@{rest}") as store:
        store.log(LogSpec("secret"))
        assert store.url == f"{scheme}://mill:***@{rest}"
        with pytest.raises(LogNotFoundError) as caught:
            store.log(LogSpec("none"), create=False)
        assert "s3cret" not in str(caught.value)
        with pytest.raises(LogInputError, match="is masked"):
            open_store(store.url)
    with pytest.raises(StorageError, match="check the user and the password") as denied:
        open_store(f"{scheme}://mill:wr0ng@{rest}")
    assert "wr0ng" not in "".join(map(str, (denied.value, denied.value.__cause__)))


def make_account(connection: DatabaseConnection, url: str) -> None:
    if url.startswith("mysql:"):
        connection.execute("CREATE OR REPLACE USER 'mill'@'%' IDENTIFIED BY 's3cret'")
        connection.execute("GRANT ALL ON *.* TO 'mill'@'%'")
        return
    if not connection.rows("SELECT FROM pg_roles WHERE rolname = 'mill'"):
        connection.execute("CREATE ROLE mill LOGIN PASSWORD 's3cret'")
    connection.execute("GRANT ALL ON SCHEMA public TO mill")
    connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO mill")


def test_a_database_is_made_only_for_writing(server: str) -> None:
    url = f"{server}test_absent"
    for options in ({"read_only": True}, {"create": False}):
        for _ in range(2):
            with pytest.raises(LogNotFoundError, match="check the URL"):
                open_store(url, **options)


def test_processes_that_make_the_same_database_at_once_all_get_it(server: str, connection: DatabaseConnection) -> None:
    url = f"{server}test_at_once"
    code = "import sys; from millstream.log import *; print(open_store(sys.argv[1]).log(LogSpec('shared')).name)"
    makers = [subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [maker.communicate(timeout=60)[0] for maker in makers] == ["shared\n"] * 3
    connection.execute("DROP DATABASE test_at_once")


def test_read_only_reads_and_refuses_to_write(log: Log, store_url: str) -> None:
    with open_store(store_url, read_only=True) as store:
        readable = store.log(SPEC, create=False)
        assert sum(len(batch) for batch in readable.read()) == 50
        for write in (readable.writer, lambda: store.log(LogSpec("new")), lambda: readable.set_pointer("x", 3)):
            with pytest.raises(StorageReadOnlyError):
                write()


def test_a_store_of_a_newer_format_is_refused(log: Log, store_url: str, connection: DatabaseConnection) -> None:
    connection.execute("INSERT INTO millstream_format VALUES (99)")
    try:
        with pytest.raises(StorageError, match="format 99"):
            open_store(store_url)
    finally:
        connection.execute("DELETE FROM millstream_format WHERE version = 99")


def test_a_store_whose_maker_has_not_yet_noted_its_format_opens(
    log: Log, store_url: str, connection: DatabaseConnection
) -> None:
    connection.execute("DELETE FROM millstream_format")
    open_store(store_url, read_only=True).close()
    assert connection.rows("SELECT max(version) FROM millstream_format")[0] == (None,)
    open_store(store_url).close()
    assert connection.rows("SELECT max(version) FROM millstream_format")[0] == (2,)


def test_a_closed_store_says_so(store_url: str) -> None:
    store = open_store(store_url)
    log = store.log(SPEC)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        log.info()


def test_a_name_that_is_too_long_for_a_key_is_refused(log: Log) -> None:
    log.set_pointer("ü€𝄞" * 85, 1)
    with pytest.raises(LogInputError, match="shorter"):
        log._backend.put_state(SPEC.name, "x" * 2000, b"", version=0)


@pytest.mark.parametrize(("scheme", "module"), [("mysql", "pymysql"), ("postgresql", "psycopg")])
def test_a_server_that_is_not_there_is_named_at_once(scheme: str, module: str) -> None:
    pytest.importorskip(module)
    with pytest.raises(StorageUnavailableError, match=r"//me:\*\*\*@127.0.0.1:1/db: .*check that the server runs"):
        open_store(f"{scheme}://me:s3cret@127.0.0.1:1/db")


@pytest.mark.parametrize(("scheme", "module"), [("mysql", "pymysql"), ("postgresql", "psycopg")])
def test_doctor_and_config_do_not_show_a_password(
    scheme: str, module: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module)
    url = f"{scheme}://me:s3cret@127.0.0.1:1/db"
    monkeypatch.setenv("MILLSTREAM_LOG__STORE", url)
    assert run(["doctor", "--store", url]) == 1
    assert run(["config", "show"]) == 0
    assert run(["log", "list"]) == 1
    shown = "".join(capfd.readouterr())
    assert f"{scheme}://me:***@127.0.0.1:1/db" in shown
    assert "s3cret" not in shown
