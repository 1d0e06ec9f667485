"""A database file that cannot be used: each reason in words that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from millstream.core.passing_errors import is_passing
from millstream.core.sqlite_file import DatabaseFileError, explain_errors, explained, open_database, require_database


def _make(path: Path, table: str = "mill_items") -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table} (name TEXT)")
        connection.executemany(f"INSERT INTO {table} VALUES (?)", [("x" * 1000,) for _ in range(100)])
        connection.commit()


def _cut(path: Path) -> None:
    _make(path)
    path.write_bytes(path.read_bytes()[:8192])


def _head(path: Path) -> None:
    _make(path)
    path.write_bytes(path.read_bytes()[:60])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b"no database, but a letter to somebody" * 100), "is not an SQLite database"),
        (lambda path: path.write_bytes(b"short"), "is not an SQLite database"),
        (lambda path: _make(path, "bookmarks"), "of another program .* 'bookmarks'.*choose another folder"),
        (_cut, "is truncated.*restore the file from a backup"),
        (_head, "is truncated.*restore the file from a backup"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_what_to_do(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "own.db")
    with pytest.raises(DatabaseFileError, match=said):
        require_database(tmp_path / "own.db", ["mill_"])


def test_a_database_of_ours_an_empty_and_an_absent_one_are_taken(tmp_path: Path) -> None:
    _make(tmp_path / "own.db")
    (tmp_path / "empty.db").touch()
    for name in ("own.db", "empty.db", "absent.db"):
        require_database(tmp_path / name, ["mill_"])
    assert not (tmp_path / "absent.db").exists()


@pytest.mark.parametrize(
    ("name", "query", "statement", "said"),
    [
        ("own.db", "?mode=ro&uri=true", "DELETE FROM mill_items", "cannot be written .*right to write the file"),
        ("folder", "", "SELECT 1", "cannot be opened .*right to read and write the file"),
    ],
)
def test_errors_of_the_file_say_what_to_do(tmp_path: Path, name: str, query: str, statement: str, said: str) -> None:
    _make(tmp_path / "own.db")
    (tmp_path / "folder").mkdir()
    engine = sa.create_engine(f"sqlite:///file:{tmp_path / name}{query}" if query else f"sqlite:///{tmp_path / name}")
    explain_errors(engine, tmp_path / name)
    with pytest.raises(DatabaseFileError, match=said), engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def _no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)


def _read_only_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=os.ST_RDONLY))


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (_no_descriptors, r"cannot be opened \(Too many open files\): raise the limit on open files"),
        (_read_only_disk, r"cannot be opened \(Read-only file system\): check the disk"),
    ],
)
def test_what_the_process_or_the_disk_lacks_may_pass_and_is_no_matter_of_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: Callable[[pytest.MonkeyPatch], None], said: str
) -> None:
    (tmp_path / "folder").mkdir()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'folder'}")
    explain_errors(engine, tmp_path / "folder")
    lack(monkeypatch)
    with pytest.raises(DatabaseFileError, match=said) as caught:
        engine.connect()
    engine.dispose()
    assert is_passing(caught.value)


def test_a_file_that_cannot_grow_is_said_to_be_one_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE node_t (a)")
        connection.execute("PRAGMA max_page_count=2")
        said = r"node\.db cannot be written \(.* full\): free some space"
        with pytest.raises(DatabaseFileError, match=said), explained(path):
            connection.execute("INSERT INTO node_t VALUES (zeroblob(100000))")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced_is_not_used_any_more_nor_made_anew(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "node.db"
    told = r"node\.db was replaced .* start them again" if replaced else r"node\.db was deleted .* from a backup"
    engine = open_database(path, ["mill_"])
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mill_items (a)")
    with engine.connect() as used:
        path.rename(tmp_path / "before.db")
        if replaced:
            _make(path)
        for _ in range(2):  # a connection of the pool, and a new one
            with pytest.raises(DatabaseFileError, match=told):
                engine.connect()
        used.rollback()
    with pytest.raises(DatabaseFileError, match=told):
        engine.connect()
    engine.dispose()
    assert path.exists() == replaced


def test_the_connection_that_was_used_last_is_used_next(tmp_path: Path) -> None:
    engine = open_database(tmp_path / "node.db", ["mill_"])
    with engine.connect() as first, engine.connect():
        last = first.connection.dbapi_connection  # as the outer one it is given back last
    for _ in range(3):
        with engine.connect() as again:
            assert again.connection.dbapi_connection is last
    engine.dispose()
