"""An SQLite log is vacuumed: its file shrinks, nothing is lost by a crash, and nobody who uses it is disturbed."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.sqlite_vacuum import FileSizes, temporary_folder
from millstream.log import Log, LogSpec, StorageBusyError, WriterBusyError, open_store
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.testing.disk import DiskFaults, Recording
from millstream.testing.killed_programs import kill_at
from suite.sizes import examples
from support.commands import run_command
from support.recorded_disk import record_disk
from support.small_disk import small_disk

CHILDREN = Path(__file__).with_name("children")
SPEC, MESSAGES, FIRST_ID = LogSpec("weather", block_messages=5), 60, 41
CHILD = [sys.executable, CHILDREN / "vacuumed.py"]
LEFT = list(range(FIRST_ID, MESSAGES + 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """A log of 60 messages of 12 kB, of which the last 20 are left."""
    draw = random.Random(1)
    with open_store(url) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([draw.randbytes(12_000) for _ in range(MESSAGES)])
        log.trim(FIRST_ID)
        yield log


def ids(log: Log) -> list[int]:
    return [message.id for batch in log.read() for message in batch]


def vacuumed(log: Log) -> FileSizes:
    sizes = log.vacuum().sizes
    assert sizes is not None
    return sizes


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_the_file_shrinks_to_what_is_left_and_keeps_its_form(log: Log, path: Path, url: str) -> None:
    names = ("page_size", "journal_mode", "user_version", "auto_vacuum")
    before = [pragma(path, name) for name in names]
    bodies = [message.body for batch in log.read() for message in batch]
    done = vacuumed(log)
    assert done.before > 60 * 12_000
    assert done.after == path.stat().st_size < 25 * 12_000
    assert not Path(f"{path}-wal").stat().st_size
    assert [pragma(path, name) for name in names] == before
    assert [message.body for batch in log.read() for message in batch] == bodies
    with log.writer() as writer:
        assert writer.append([b"next"]) is not None
    assert log.verify().ok
    with open_store(url) as again:
        assert ids(again.log(SPEC)) == [*LEFT, MESSAGES + 1]


def test_a_file_without_free_pages_is_left_as_it_is(log: Log, path: Path) -> None:
    log.vacuum()
    content = path.read_bytes()
    done = vacuumed(log)
    assert (done.before, done.after) == (len(content), len(content))
    assert path.read_bytes() == content


def test_a_log_of_the_file_that_is_being_written_is_named(log: Log, path: Path, url: str) -> None:
    size = path.stat().st_size
    with (
        open_store(url) as other,
        other.log(LogSpec("other")).writer(),
        pytest.raises(WriterBusyError, match=r"its log 'other' is being written by process .* Stop that process"),
    ):
        log.vacuum()
    assert path.stat().st_size >= size
    log.vacuum()
    assert path.stat().st_size < size


def test_an_open_reader_goes_on(log: Log, url: str) -> None:
    with open_store(url) as other, other.log(SPEC).reader("report") as reader:
        batches = reader.batches(5)
        _trimmed, first = next(batches), next(batches)
        log.vacuum()
        reader.ack(first.ids)
        rest = [message.id for batch in batches for message in batch]
    assert [message.id for message in first] + rest == LEFT
    assert log.pointer("report") == first.last_id


def test_a_program_in_the_middle_of_reading_keeps_the_file_as_it_is(log: Log, path: Path) -> None:
    backend = cast("SqliteBackend", log._backend.hot)
    backend._writer.execute("PRAGMA busy_timeout = 0")
    with log.writer() as writer:
        writer.append([b"x"])
    size = path.stat().st_size
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        (count,) = connection.execute("SELECT count(*) FROM blocks_1").fetchone()
        with log.writer() as writer:
            writer.append([b"y"])
        with pytest.raises(StorageBusyError, match="while another process is using it: "):
            log.vacuum()
        assert path.stat().st_size == size
        assert connection.execute("SELECT count(*) FROM blocks_1").fetchone() == (count,)
        connection.execute("ROLLBACK")
    log.vacuum()
    assert path.stat().st_size < size


def test_the_command_says_what_was_freed(log: Log, path: Path, url: str) -> None:
    done = run_command("log", "vacuum", "weather", "--store", url, "--json")
    told = json.loads(done.out)
    assert (done.code, told["log"], told["sizes"]["after"]) == (0, "weather", path.stat().st_size)
    assert told["sizes"]["before"] > told["sizes"]["after"]
    assert run_command("log", "vacuum", "weather", "--store", url).out.endswith(" kB, 0 B freed\n")
    missing = run_command("log", "vacuum", "none", "--store", url)
    assert (missing.code, "there is no log 'none'" in missing.err) == (3, True)


def test_segment_files_need_no_vacuum(tmp_path: Path) -> None:
    url = f"segments:///{tmp_path / 'log'}"
    with open_store(url) as store:
        store.log(SPEC)
    done = run_command("log", "vacuum", "weather", "--store", url)
    assert done.out == "weather: nothing to do: this kind of store frees space when a log is trimmed\n"


@pytest.mark.served
@pytest.mark.parametrize(
    ("server", "statement"), [("mysql", "OPTIMIZE TABLE "), ("postgresql", "VACUUM FULL ")], indirect=["server"]
)
def test_the_administrator_of_a_server_is_told_what_to_execute(store_url: str, statement: str) -> None:
    from millstream.testing.databases import connected

    with open_store(store_url) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"x"])
        (told,) = log.vacuum().statements
        assert told.startswith(f"{statement}blocks_weather_")
        with connected(store_url) as connection:
            done = connection.rows(told) if statement.startswith("OPTIMIZE") else connection.execute(told)
        assert done is not None
        assert ids(log) == [1]


def test_too_little_room_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    child = [*small_disk(disk, "size=40m"), str(CHILDREN / "small_disk_vacuum.py"), str(disk), str(elsewhere)]
    done = subprocess.run(child, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert f"on the disk of {disk} for a while, and 2." in found["same disk"]
    assert "MB are missing; free space there, or set the environment variable SQLITE_TMPDIR" in found["same disk"]
    assert found["no room"].endswith(" are missing; free space there")
    before, after = map(int, found["room elsewhere"].split())
    assert (before > 4_000_000, after < 2_500_000, found["ok"]) == (True, True, True)


def test_temporary_files_are_where_sqlite_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path / "absent"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert temporary_folder() == tmp_path


# The power is lost, or the process is killed


def check_and_vacuum(path: Path) -> None:
    """The log lost nothing; it is written again, and vacuumed by the next call."""
    with open_store(f"sqlite:///{path}") as store:
        log = store.log(SPEC)
        assert ids(log) == LEFT
        with log.writer() as writer:
            writer.append([b"next"])
        assert log.verify().ok
        log.vacuum()
        assert path.stat().st_size < 25 * 12_000
        assert log.verify().ok


@pytest.fixture(scope="module")
def recording(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    """What a vacuum did to its disk, after the log was written and trimmed."""
    folder = tmp_path_factory.mktemp("vacuumed")
    return record_disk(shim, folder, CHILDREN / "vacuumed.py", MESSAGES, FIRST_ID, "vacuum")


@examples(ci=50, long=1000)
@given(share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_nothing_is_lost_when_the_power_is_at_any_moment_of_a_vacuum(
    recording: tuple[Path, Recording], share: float, seed: int
) -> None:
    store, recorded = recording
    began, ended = (number for number, change in enumerate(recorded.changes) if change.path.name == "steps")
    assert sum(change.path.name == "log.db-wal" for change in recorded.changes[began:ended]) > 30
    moment = began + round(share * (ended - began))
    with tempfile.TemporaryDirectory(prefix="millstream-power-") as name:
        folder = Path(name)
        recorded.image(folder, store, moment, random.Random(seed))
        check_and_vacuum(folder / "log.db")


@pytest.mark.parametrize("moment", ["commit", "cut"])
def test_nothing_is_lost_by_kill_9_in_the_middle_of_a_vacuum(shim: Path, tmp_path: Path, moment: str) -> None:
    """A sync takes long here: the process is killed in that of the commit, and after the file was cut."""
    subprocess.run([*CHILD, tmp_path, str(MESSAGES), str(FIRST_ID), "-"], check=True)
    path = tmp_path / "log.db"
    log_file, size = Path(f"{path}-wal"), path.stat().st_size

    def is_inside() -> bool:
        if moment == "cut":
            return path.stat().st_size < size
        return log_file.exists() and log_file.stat().st_size > 20 * 12_000

    faults = DiskFaults(tmp_path, slow_ms=400).environment(shim)
    command = ["env", f"LD_PRELOAD={shim}", *(f"{key}={value}" for key, value in faults.items() if "_DISK_" in key)]
    command += [sys.executable, "-m", "millstream", "log", "vacuum", "weather", "--store", f"sqlite:///{path}"]
    kill_at(command, is_inside, "the vacuum")
    assert log_file.stat().st_size, "and the write-ahead log, in which the new content is, was still needed"
    assert (path.stat().st_size < size) == (moment == "cut")
    check_and_vacuum(path)
