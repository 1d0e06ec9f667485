"""What is particular to logs in an SQLite file: opening, other people's files, damage on the disk."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.log import (
    CorruptBlockError,
    DamagedLogError,
    Log,
    LogError,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    StorageError,
    StorageReadOnlyError,
    open_store,
)
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.backends.sqlite.statements import READ_BLOCKS
from support.commands import run_command

SPEC = LogSpec("weather", block_messages=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """A log of 50 messages in five blocks."""
    with open_store(f"sqlite:///{path}") as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 51)])
        yield log


def execute(path: Path, statement: str, *arguments: object) -> list[tuple[bytes]]:
    """Do to the file what a fault would do."""
    connection = sqlite3.connect(path)
    with connection:
        rows = connection.execute(statement, arguments).fetchall()
    connection.close()
    return rows


def flip(path: Path, first_id: int, position: int) -> None:
    """Flip one bit of a stored block."""
    ((data,),) = execute(path, "SELECT data FROM blocks_1 WHERE first_id = ?", first_id)
    damaged = bytearray(data)
    damaged[position] ^= 4
    execute(path, "UPDATE blocks_1 SET data = ? WHERE first_id = ?", bytes(damaged), first_id)


@pytest.mark.parametrize("position", [0, 8, 40, 96, 130, -9])
def test_a_flipped_bit_in_the_middle_is_never_skipped(log: Log, path: Path, position: int) -> None:
    flip(path, 21, position)
    seen: list[int] = []
    with pytest.raises(CorruptBlockError, match="begins at id 21 is damaged") as caught:
        for batch in log.read():
            seen += [m.id for m in batch]
    assert seen == list(range(1, 21)), "what lies before the damage is given"
    assert (caught.value.log, caught.value.first_id) == ("weather", 21)
    assert [m.id for batch in log.read(31) for m in batch] == list(range(31, 51)), "what lies after it can be read"


@pytest.mark.parametrize("column", ["min_event_time", "max_event_time", "min_received_at", "max_received_at"])
@pytest.mark.parametrize("bit", [0, 21, 62])
def test_a_flipped_bit_of_the_index_is_found_and_a_copy_has_a_right_one(
    log: Log, path: Path, tmp_path: Path, column: str, bit: int
) -> None:
    ((value,),) = execute(path, f"SELECT {column} FROM blocks_1 WHERE first_id = 21")
    execute(path, f"UPDATE blocks_1 SET {column} = ? WHERE first_id = 21", int(value) ^ 1 << bit)
    (problem,) = log.verify().problems
    assert problem.startswith("the index entry of the block with ids 21 to 30 is wrong: ")
    assert f"{column} is {int(value) ^ 1 << bit}, but {value} in the block" in problem
    copied = run_command("log", "copy", f"sqlite:///{path}", f"sqlite:///{tmp_path / 'copy.db'}", "weather")
    assert copied.code == 0
    with open_store(f"sqlite:///{tmp_path / 'copy.db'}") as store:
        assert store.log(SPEC, create=False).verify().ok


@pytest.mark.parametrize("column", ["first_id", "last_id", "epoch", "bytes"])
@pytest.mark.parametrize("bit", [0, 3, 40])
def test_a_flipped_bit_of_what_a_block_is_filed_under_is_found(log: Log, path: Path, column: str, bit: int) -> None:
    ((value,),) = execute(path, f"SELECT {column} FROM blocks_1 WHERE first_id = 21")
    execute(path, f"UPDATE blocks_1 SET {column} = ? WHERE first_id = 21", int(value) ^ 1 << bit)
    assert not log.verify().ok


def test_verify_lists_all_damage_at_once(log: Log, path: Path) -> None:
    flip(path, 11, 100)
    execute(path, "DELETE FROM blocks_1 WHERE first_id = 31")
    found = log.verify()
    assert not found.ok
    assert [problem[:40] for problem in found.problems] == [
        "the block with ids 11 to 20 is damaged: ",
        "ids 31 to 40 are missing",
    ]
    assert (found.blocks, found.messages) == (4, 30)


def test_a_block_filed_under_other_ids_is_noticed(log: Log, path: Path) -> None:
    execute(path, "UPDATE blocks_1 SET data = (SELECT data FROM blocks_1 WHERE first_id = 11) WHERE first_id = 21")
    with pytest.raises(CorruptBlockError, match="it contains ids 11 to 20, but the store lists it under 21 to 30"):
        list(log.read(21))


def test_a_block_of_another_log_is_noticed(log: Log, path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store, store.log(LogSpec("other", block_messages=10)).writer() as writer:
        writer.append([b"x"] * 10)
    execute(path, "UPDATE blocks_1 SET data = (SELECT data FROM blocks_2 WHERE first_id = 1) WHERE first_id = 1")
    with pytest.raises(CorruptBlockError, match="block belongs to another log"):
        list(log.read())


def test_blocks_beyond_the_writer_pointer_keep_writers_out(log: Log, path: Path) -> None:
    execute(path, "UPDATE logs SET last_id = 40")
    with pytest.raises(DamagedLogError, match="should end at id 40, but its last block ends at 50"):
        log.writer()


def test_a_writer_that_is_refused_names_the_missing_messages(log: Log, path: Path) -> None:
    execute(path, "DELETE FROM blocks_1 WHERE first_id > 10 AND first_id <> 31")
    with pytest.raises(DamagedLogError, match="its last block ends at 40: ids 41 to 50 were confirmed and are missing"):
        log.writer()
    execute(path, "DELETE FROM blocks_1 WHERE first_id = 31")
    with pytest.raises(DamagedLogError, match="its last block ends at 10: ids 11 to 50 were confirmed and are missing"):
        log.writer()
    execute(path, "DELETE FROM blocks_1")
    with pytest.raises(DamagedLogError, match="its last block ends at 0: ids 1 to 50 were confirmed and are missing"):
        log.writer()


def test_a_log_that_ends_before_its_marks_keeps_writers_out(log: Log, path: Path) -> None:
    """Otherwise new messages would get ids that are taken by messages which were trimmed or moved."""
    log.trim(51)
    execute(path, "UPDATE logs SET last_id = 40")
    with pytest.raises(DamagedLogError, match="should end at id 40, but its last block ends at 50"):
        log.writer()
    assert log.verify().problems == ("the writer pointer is 40, but the last block ends at 50",)


def test_the_file_is_durable_by_its_settings(path: Path, log: Log) -> None:
    assert execute(path, "PRAGMA journal_mode") == [("wal",)]
    backend = SqliteBackend(path, SystemClock())
    assert backend._writer.execute("PRAGMA synchronous").fetchone() == (2,), "2 is FULL"
    backend.close()
    assert log.info().durability == "fsync"


def test_a_url_opens_the_same_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///a folder/ü%20#?.db") as store:
        store.log(SPEC)
        assert (tmp_path / "a folder" / "ü%20#?.db").exists()
        with open_store(store.url) as again:
            assert list(again.logs()) == ["weather"]


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///", "sqlite://host/x", "memory://x", "mysql://h/d", "log.db", "sqlite:///a\0b"]
)
def test_a_url_of_no_known_form_is_refused(url: str) -> None:
    with pytest.raises(LogInputError, match=f"invalid (log store|database) URL {re.escape(repr(url))}: use "):
        open_store(url)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "-x", "x" * 201, "ü", "a\0"])
def test_a_log_has_a_plain_name(name: str) -> None:
    with pytest.raises(LogInputError, match="invalid log name"):
        LogSpec(name)


def test_a_store_that_is_not_there_is_not_made_for_reading(path: Path) -> None:
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(LogNotFoundError, match="no log store at"):
            open_store(f"sqlite:///{path}", **options)
    assert not path.exists()


def test_a_copy_that_sqlite_made_is_read_as_it_is(log: Log, path: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM INTO ?", [str(tmp_path / "backup.db")])
    with open_store(f"sqlite:///{tmp_path / 'backup.db'}", read_only=True) as store:
        assert store.log(SPEC).last_id == log.last_id
        assert [m.body for batch in store.log(SPEC).read() for m in batch] == [b"%d" % n for n in range(1, 51)]


def test_read_only_reads_and_refuses_to_write(log: Log, path: Path) -> None:
    with open_store(f"sqlite:///{path}", read_only=True) as store:
        readable = store.log(SPEC, create=False)
        assert sum(len(batch) for batch in readable.read()) == 50
        assert readable.info().count == 50
        with pytest.raises(StorageReadOnlyError):
            readable.writer()
        with pytest.raises(StorageReadOnlyError):
            store.log(LogSpec("new"))


def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    execute(path, "CREATE TABLE theirs (x)")
    with pytest.raises(StorageError, match="a database of another program"):
        open_store(f"sqlite:///{path}")
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    with pytest.raises(DamagedLogError, match="not that of an SQLite database"):
        open_store(f"sqlite:///{path}")


def test_a_store_of_a_newer_format_is_refused(log: Log, path: Path) -> None:
    execute(path, "PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="format 99"):
        open_store(f"sqlite:///{path}")


@pytest.mark.parametrize("content", [b"no database at all, but long enough to look at" * 100, b""])
def test_a_store_that_cannot_be_opened_leaves_its_file_closed(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LogError) as refused:
        open_store(f"sqlite:///{path}", read_only=True)
    assert refused.tb is not None, "which keeps all that is not closed"
    assert path not in [link.resolve() for link in Path("/proc/self/fd").iterdir()]


def test_a_closed_store_says_so(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    log = store.log(SPEC)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        log.info()


def test_reading_by_id_uses_the_index(log: Log, path: Path) -> None:
    plan = execute(path, "EXPLAIN QUERY PLAN " + READ_BLOCKS.format(1), 5, 5, 5, 9)
    assert not [row for row in plan if "SCAN" in str(row[3])], plan  # type: ignore[misc]
