"""Tables of a database that several processes open at the same moment."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

import millstream
from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.column_types import EXACT_LONG_TEXT, NAME
from millstream.core.database_server import open_server, with_password
from millstream.core.documents import DatabaseDocuments
from millstream.core.sql import (
    NoDatabaseError,
    SqlBusyError,
    SqlDatabase,
    SqlInputError,
    has_table,
    make_tables,
    writing,
)
from millstream.core.sql_rows import among, insert_new, insert_rows, put_row, replacing, update_rows
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.mysql.backend import MysqlDialect
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.relay.mysql_dialect import ReadCommitted
from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.manifest import Manifest
from millstream.mill.repair.repair_log import RepairLog
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.testing import services
from millstream.testing.waiting import until
from support.server_databases import new_database

TABLES = 20


def test_tables_of_a_shared_database_are_made_by_the_one_that_allows_for_others() -> None:
    source = Path(millstream.__file__).parent
    users = {path.name for path in source.rglob("*.py") if ".create_all(" in path.read_text("utf-8")}
    assert users == {"sql.py"}, "call millstream.core.sql.make_tables: processes begin at the same moment"


@pytest.mark.parametrize("made", [AdoptionCatalog, Manifest, RepairLog, AuditLog, OperatorAuditLog, DatabaseDocuments])
def test_tables_are_looked_for_once_for_each_engine(tmp_path: Path, made: Callable[..., object]) -> None:
    engine, statements = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}"), list[str]()
    sa.event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    more = (VirtualClock(),) if made is OperatorAuditLog else ()
    made(engine, *more)
    assert statements
    statements.clear()
    made(engine, *more)
    assert not statements
    engine.dispose()
    with contextlib.closing(sqlite3.connect(tmp_path / "node.db")) as database:
        assert database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]


def test_a_pool_without_a_free_connection_is_a_busy_database(tmp_path: Path) -> None:
    engine = sa.create_engine(
        f"sqlite:///{tmp_path / 'node.db'}",
        poolclass=sa.pool.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01,
    )  # fmt: skip
    with engine.connect(), pytest.raises(SqlBusyError, match="no free connection for this process"):
        SqlDatabase(engine, VirtualClock(), sa.MetaData()).query(
            lambda connection: connection.execute(sa.select(1)).all()
        )
    engine.dispose()


def test_tables_are_looked_for_by_the_one_that_allows_for_others() -> None:
    source = Path(millstream.__file__).parent
    users = {
        path.name
        for path in source.rglob("*.py")
        if ").has_table(" in (text := path.read_text("utf-8")) or ".dialect.has_table(" in text
    }
    assert users == {"sql.py"}, "call millstream.core.sql.has_table: another process may make the table at the moment"


def schema() -> sa.MetaData:
    metadata = sa.MetaData()
    for number in range(TABLES):
        sa.Table(f"t{number}", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Index(f"i{number}", "id"))
    return metadata


def made(engine: sa.Engine) -> int:
    return len(sa.inspect(engine).get_table_names())


@pytest.mark.parametrize("round_", range(5))
def test_any_number_may_make_the_same_tables_at_once(tmp_path: Path, round_: int) -> None:
    url, failures = f"sqlite:///{tmp_path / f'{round_}.db'}", list[BaseException]()
    ready = threading.Barrier(8)

    def open_it() -> None:
        engine = sa.create_engine(url, connect_args={"timeout": 30})
        ready.wait()
        try:
            make_tables(engine, schema())
        except BaseException as error:
            failures.append(error)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine = sa.create_engine(url)
    assert not failures
    assert made(engine) == TABLES
    engine.dispose()


def test_a_table_of_an_earlier_version_gets_the_columns_that_it_lacks(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'older.db'}", connect_args={"timeout": 30})
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL)")
        connection.exec_driver_sql("INSERT INTO books VALUES (1, 'Emma')")
    metadata = sa.MetaData()
    books = sa.Table(
        "books",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("end", sa.BigInteger),
        sa.Column("lent_to", sa.Text),
    )
    failures = list[BaseException]()

    def open_it() -> None:
        try:
            make_tables(engine, metadata)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with engine.begin() as connection:
        connection.execute(sa.insert(books).values(id=2, title="Persuasion", end=7, lent_to="Ada"))
        rows = connection.execute(sa.select(books).order_by(books.c.id)).all()
    assert [tuple(row) for row in rows] == [(1, "Emma", None, None), (2, "Persuasion", 7, "Ada")]
    engine.dispose()


def test_what_is_there_needs_no_right_to_write(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    make_tables(engine, schema())
    engine.dispose()
    reader = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    make_tables(reader, schema())
    assert made(reader) == TABLES
    reader.dispose()


def test_tables_that_cannot_be_made_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "kept.db").touch()
    reader = sa.create_engine(f"sqlite:///file:{tmp_path / 'kept.db'}?mode=ro&uri=true")
    with pytest.raises(sa.exc.OperationalError):
        make_tables(reader, schema())
    reader.dispose()


@pytest.mark.served
def test_a_table_that_another_connection_changes_is_looked_at_again(mariadb: str) -> None:
    """MariaDB refuses, within a transaction that has read another table, to describe one in the middle of a change."""
    with new_database(mariadb, "ddl") as url:
        engine, other, refused, ended = open_server(url), open_server(url), list[str](), threading.Event()
        sa.event.listen(engine, "handle_error", lambda context: refused.append(str(context.original_exception)))

        def look() -> bool:
            with engine.connect() as connection:
                connection.exec_driver_sql("SELECT * FROM t1")
                assert has_table(connection, "t0")
            return any("1684" in text for text in refused)

        def change() -> None:
            with other.connect() as connection:
                while not ended.is_set():
                    connection.exec_driver_sql("ALTER TABLE t0 ADD COLUMN more INT, ALGORITHM=COPY")
                    connection.exec_driver_sql("ALTER TABLE t0 DROP COLUMN more, ALGORITHM=COPY")

        make_tables(engine, schema())
        changing = threading.Thread(target=change)
        changing.start()
        try:
            until(look, "a refusal")
        finally:
            ended.set()
            changing.join()
            engine.dispose()
            other.dispose()


@pytest.mark.served
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_server_that_is_being_started_is_waited_for(kind: str) -> None:
    with services.private(kind) as server:
        server.kill()
        starter = threading.Thread(target=server.start)
        starter.start()
        engine = open_server(server.url + "late")
        starter.join()
        assert made(engine) == 0
        engine.dispose()


@pytest.mark.served
def test_a_read_on_postgresql_begins_no_transaction(postgresql: str) -> None:
    with new_database(postgresql, "reads") as url:
        engine = open_server(url)
        database = SqlDatabase(engine, SystemClock(), sa.MetaData())
        is_alone = sa.text("SELECT now() = statement_timestamp()")  # else it is the time of the transaction's begin
        for _ in range(2):
            assert database.query(lambda connection: connection.scalar(is_alone))
        with engine.begin() as connection:
            assert not connection.scalar(is_alone)
        engine.dispose()


@pytest.mark.served
def test_no_clock_on_mariadb_jumps_when_summer_time_ends(mariadb: str) -> None:
    """An hour of local time comes twice then, and leases use a time that is computed from the session's."""
    zone = "SELECT @@SESSION.time_zone"
    with new_database(mariadb, "zones") as url:
        engine = open_server(url)
        with engine.connect() as connection:
            assert connection.scalar(sa.text(zone)) == "+00:00"
        engine.dispose()
        address = parse_address(url)
        for dialect in (MysqlDialect(), ReadCommitted()):
            with contextlib.closing(choose_driver(address)(address)) as session:
                dialect.begin_session(session, read_only=False)
                assert [*session.rows(zone)] in ([("+00:00",)], [(b"+00:00",)])


@pytest.mark.served
def test_a_connection_is_pinged_only_after_it_was_idle(mariadb: str) -> None:
    clock, pings = VirtualClock(), sa.text("SHOW SESSION STATUS LIKE 'Com_admin_commands'")
    with new_database(mariadb, "pings") as url:
        engine = open_server(url, clock)

        def pinged() -> int:
            with engine.connect() as connection:
                return int(connection.execute(pings).one()[1])

        before = pinged()
        assert [pinged() for _ in range(3)] == [before] * 3
        clock.advance(1.0)
        assert pinged() == before + 1
        with engine.connect() as connection:
            number = connection.scalar(sa.text("SELECT connection_id()"))
        other = open_server(url)
        with other.connect() as connection:
            connection.execute(sa.text(f"KILL {number}"))
        clock.advance(1.0)
        assert pinged() == 0, "another connection"
        other.dispose()
        engine.dispose()


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_a_server_that_stays_away_is_named_after_some_seconds_and_its_password_is_not(scheme: str) -> None:
    clock = VirtualClock()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(SqlBusyError, match=f"127.0.0.1:{port} did not answer.*start its server") as caught:
            open_server(f"{scheme}://ada:grain@127.0.0.1:{port}/away", clock)
    assert 10 < clock.monotonic() < 60
    assert "grain" not in str(caught.value)


@pytest.mark.served
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_database_that_is_only_read_is_not_made(kind: str, request: pytest.FixtureRequest) -> None:
    url = f"{request.getfixturevalue(kind)}mistyped"
    for _ in range(2):
        with pytest.raises(NoDatabaseError, match=r"there is no database 'mistyped' on .*millstream serve"):
            open_server(url, VirtualClock(), create=False)


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("postgresql://ada:grain@127.0.0.1:9/books?sslmod=require", "sslmod"),
        ("postgresql://ada:grain@127.0.0.1:9/books?sslmode=requir", "requir"),
        ("mysql://ada:grain@127.0.0.1:9/books?sslmod=require", "sslmod"),
        ("mysql://ada:grain@127.0.0.1:9/books?connect_timeout=soon", "soon"),
    ],
)
def test_an_option_of_a_url_that_its_driver_does_not_have_is_refused_at_once(url: str, option: str) -> None:
    clock = VirtualClock()
    with pytest.raises(SqlInputError, match=f"'books' on 127.0.0.1.*{option}.*in the settings") as caught:
        open_server(url, clock)
    assert (clock.monotonic(), "grain" in str(caught.value)) == (0.0, False)


def test_a_password_that_the_driver_cannot_send_is_refused_and_no_part_of_it_shown() -> None:
    with pytest.raises(SqlInputError, match=r"'books' on 127.0.0.1: its driver cannot send a character of") as caught:
        open_server("mysql://ada:gr\u20acin@127.0.0.1:9/books", VirtualClock())
    assert "u20ac" not in ascii(str(caught.value)) and caught.value.__suppress_context__


BOOKS = sa.Table(
    "books_in_a_row",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shelf", sa.String(20), nullable=False),
    sa.Column("place", sa.Integer),
    sa.CheckConstraint("place < 1000000"),
)


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Connection]:
    """A table of a thousand books, on either kind of database."""
    if request.param != "sqlite":
        engine = open_server(str(request.getfixturevalue(request.param)) + "rows")
    else:
        engine = sa.create_engine(f"sqlite:///{tmp_path / 'books.db'}")
    with engine.connect() as connection:
        BOOKS.drop(connection, checkfirst=True)
        BOOKS.create(connection)
        connection.commit()
        assert insert_rows(connection, BOOKS, ["id", "shelf"], [(n, "new") for n in range(1_000)]) == 1_000
        yield connection
        connection.rollback()
        BOOKS.drop(connection)
        connection.commit()
    engine.dispose()


def test_rows_whose_key_is_known_stay_as_they_are(books: sa.Connection) -> None:
    assert insert_rows(books, BOOKS, ["id", "shelf"], [(n, "again") for n in range(995, 1_005)]) == 5
    shelves = books.execute(sa.select(BOOKS.c.shelf).where(BOOKS.c.id.between(998, 1_001)).order_by(BOOKS.c.id))
    assert list(shelves.scalars()) == ["new", "new", "again", "again"]
    assert insert_rows(books, BOOKS, ["id"], []) == 0


def test_a_row_that_cannot_be_kept_for_another_reason_is_an_error_and_no_row_is_stored(books: sa.Connection) -> None:
    rows = [(n, "again", 1) for n in range(998, 1_003)]
    for wrong in ((2_000, "again", 1_000_000), (2_000, None, 1)):
        with pytest.raises(sa.exc.DBAPIError), books.begin_nested():
            insert_rows(books, BOOKS, ["id", "shelf", "place"], [*rows, wrong])
        with pytest.raises(sa.exc.DBAPIError), books.begin_nested():
            books.execute(insert_new(books, BOOKS), dict(zip(["id", "shelf", "place"], wrong, strict=True)))
        assert books.scalar(sa.select(sa.func.count()).select_from(BOOKS)) == 1_000


def test_one_row_whose_key_is_known_stays_as_it_is(books: sa.Connection) -> None:
    for number in (999, 1_000):
        books.execute(insert_new(books, BOOKS), {"id": number, "shelf": "again"})
    shelves = books.execute(sa.select(BOOKS.c.shelf).where(BOOKS.c.id >= 999).order_by(BOOKS.c.id))
    assert list(shelves.scalars()) == ["new", "again"]


def test_a_row_that_is_put_twice_is_there_once_even_if_nothing_changes(books: sa.Connection) -> None:
    for shelf in ("moved", "moved", "back"):
        put_row(books, BOOKS, {"id": 7, "shelf": shelf})
        put_row(books, BOOKS, {"id": 1_000, "shelf": shelf})
        found = books.execute(sa.select(BOOKS.c.shelf).where(BOOKS.c.id.in_([7, 1_000])))
        assert list(found.scalars()) == [shelf, shelf]


def test_each_row_gets_its_own_value_and_all_the_same_change(books: sa.Connection) -> None:
    insert_rows(books, BOOKS, ["id", "shelf"], [(2_000, "kept")])
    pairs = [(number, 10 * number) for number in (*range(0, 1_000, 2), 2_000, 3_000)]
    place, key = BOOKS.c.place, BOOKS.c.id
    assert update_rows(books, place, key, pairs, change={"shelf": "read"}, never={"shelf": "kept"}) == 500
    assert update_rows(books, place, key, [(7, 1)], change={}, only={"shelf": "read"}) == 0
    found = {row.id: (row.shelf, row.place) for row in books.execute(sa.select(BOOKS))}
    assert found[998] == ("read", 9_980) and found[999] == ("new", None) and found[2_000] == ("kept", None)


@pytest.mark.served
def test_each_kind_of_value_is_stored_as_it_was_given(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    kinds = {
        "number": sa.BigInteger,
        "flag": sa.Boolean,
        "data": sa.LargeBinary,
        "facts": sa.JSON,
        "text": EXACT_LONG_TEXT,
    }
    columns = [sa.Column(name, kind) for name, kind in kinds.items()]
    table = sa.Table("kinds", sa.MetaData(), sa.Column("id", NAME, primary_key=True), *columns)
    rows = [
        ("a", 2**63 - 1, 1, b"\x00\xff'\\x41", '{"b": [1, null], "a": "\\u00e9"}', "\\u0000 %s %% ' \" é 😀\n"),
        ("b", -(2**63), 0, b"", "[]", ""),
        ("c", None, None, None, None, None),
    ]
    expected = [
        (name, number, flag and bool(flag), data, facts and json.loads(facts), text)
        for name, number, flag, data, facts, text in rows
    ]
    expected[1] = ("b", -(2**63), False, b"", [], "")
    for place in ("sqlite", "mariadb", "postgresql"):
        url = "" if place == "sqlite" else str(request.getfixturevalue(place)) + "kinds"
        engine = open_server(url) if url else sa.create_engine(f"sqlite:///{tmp_path / 'kinds.db'}")
        with writing(engine) as connection:
            table.drop(connection, checkfirst=True)
            table.create(connection)
            assert insert_rows(connection, table, ["id", *kinds], rows) == 3
            assert connection.execute(sa.select(table).order_by(table.c.id)).all() == expected, place
        engine.dispose()


@pytest.mark.served
def test_a_text_with_nul_is_stored_in_postgresql_with_the_replacement_character(postgresql: str) -> None:
    engine = open_server(postgresql + "rows")
    with writing(engine) as connection:
        BOOKS.drop(connection, checkfirst=True)
        BOOKS.create(connection)
        insert_rows(connection, BOOKS, ["id", "shelf"], [(1, "a\0b"), (2, "a\\u0000b")])
        assert connection.execute(sa.select(BOOKS.c.shelf).order_by(BOOKS.c.id)).scalars().all() == [
            "a\ufffdb",
            "a\\u0000b",
        ]
        BOOKS.drop(connection)
    engine.dispose()


def test_a_column_that_is_null_in_all_rows_is_stored_and_replaces_what_was_there(tmp_path: Path) -> None:
    engine, metadata = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}"), sa.MetaData()
    columns = [sa.Column("id", sa.Integer, primary_key=True), *(sa.Column(name, sa.Text) for name in "abc")]
    table = sa.Table("t", metadata, *columns)
    metadata.create_all(engine)
    replace = replacing(table, "abc")
    with writing(engine) as connection:
        for rows in (
            [(1, "old", "old", None), (2, None, "old", None)],
            [(1, None, "new", None), (3, None, None, None)],
        ):
            assert insert_rows(connection, table, ("id", "a", "b", "c"), rows, conflict=replace) == 2
        stored = connection.execute(sa.select(table).order_by(table.c.id)).all()
    assert stored == [(1, None, "new", None), (2, None, "old", None), (3, None, None, None)]
    engine.dispose()


def test_rows_are_put_into_statements_by_their_bytes_too() -> None:
    from millstream.core.sql_rows import _chunks

    large, small = (b"x" * 3_000_000,), (b"y",)
    assert [len(chunk) for chunk in _chunks([large, large, small, large])] == [1, 2, 1]
    assert [len(chunk) for chunk in _chunks([small] * 900)] == [400, 400, 100]
    assert list(_chunks([])) == []


def test_a_transaction_within_another_is_a_part_of_it(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")

    def add(number: int) -> None:
        with writing(engine) as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (?)", (number,))

    with pytest.raises(ZeroDivisionError), writing(engine):
        add(1)
        add(1 // 0)
    with writing(engine):
        add(2)
        add(3)
    with engine.connect() as connection:
        assert list(connection.exec_driver_sql("SELECT n FROM t").scalars()) == [2, 3]


def test_a_database_that_another_process_writes_to_is_an_error_of_sqlalchemy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'node.db'}"
    other, engine = sa.create_engine(url), sa.create_engine(url, connect_args={"timeout": 0})
    with writing(other), pytest.raises(sa.exc.OperationalError, match="locked"), writing(engine):
        pass
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (a)")
    other.dispose()
    engine.dispose()


def test_threads_that_write_wait_in_line_however_long_it_takes(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}", connect_args={"timeout": 0})
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")
    begun = threading.Event()

    def add() -> None:
        begun.set()
        with writing(engine) as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")

    with ThreadPoolExecutor(1) as pool:
        with writing(engine) as connection:
            adding = pool.submit(add)
            begun.wait()
            connection.exec_driver_sql("INSERT INTO t VALUES (0)")
        adding.result()  # a database that is locked would have been an error at once
    with engine.connect() as connection:
        assert list(connection.exec_driver_sql("SELECT n FROM t").scalars()) == [0, 1]


def test_a_text_with_a_nul_among_values_is_not_taken_for_its_beginning(tmp_path: Path) -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("name", sa.Text))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(table), [{"name": "a"}, {"name": "b"}])
        query = sa.select(table.c.name).where(among(table.c.name, ["a\0b", "b"]))
        assert connection.scalars(query).all() == ["b"]
    engine.dispose()


def test_the_password_of_a_database_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    place = with_password(sa.make_url(f"postgresql://ann@db.example/node?password_file={file}&application_name=x"))
    assert place.password == "s3cret" and dict(place.query) == {"application_name": "x"}
    with pytest.raises(SqlInputError, match=r"cannot read the password file /absent of the database db\.example"):
        open_server("postgresql://ann@db.example/node?password_file=/absent")
    with pytest.raises(SqlInputError, match="either the password or one password_file"):
        open_server(f"postgresql://ann:x@db.example/node?password_file={file}")
