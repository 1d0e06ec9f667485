"""What machines, networks and people do to a log, on each durable store: it is told, and never silence."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from millstream.log import (
    CorruptBlockError,
    FencedError,
    IdRange,
    Log,
    LogError,
    LogSpec,
    LogStore,
    MissingBlockError,
    StorageFullError,
    WriterBusyError,
    open_store,
)
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.disk_reserve import SHARES
from millstream.log.backends.segments import backend as segments_module
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.testing.damage import flip_bit
from suite.sizes import sized
from support.cutting_proxy import CuttingProxy

SPEC = LogSpec("weather", block_messages=10)
STORES = ["sqlite", "segments", "mysql", "postgresql", "nerve"]


@pytest.fixture(params=STORES)
def any_store(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a durable store, of each kind in turn."""
    fixtures = {"mysql": "database", "postgresql": "postgres_database", "nerve": "queues"}
    if request.param not in fixtures:
        return f"{request.param}:///{tmp_path / 'store'}"
    url: str = request.getfixturevalue(fixtures[request.param])
    return url + "?layout=nerve&shards=2" * (request.param == "nerve")


def bodies(log: Log, first: int = 1) -> list[bytes]:
    return [message.body for batch in log.read(first) for message in batch]


# The network


@pytest.mark.parametrize("any_store", ["mysql", "postgresql", "nerve"], indirect=True)
def test_a_connection_that_breaks_in_the_middle_of_a_packet_loses_and_doubles_nothing(any_store: str) -> None:
    parts = urlsplit(any_store)
    draw = random.Random(5)
    with CuttingProxy(str(parts.hostname), int(parts.port or 0)) as line:
        url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{line.port}"))
        with open_store(url) as store, store.log(SPEC).writer() as writer:
            expected: list[bytes] = []
            for turn in range(16):
                line.cut(draw.choice(["client", "server"]), draw.choice([0, 3, 40, 200, draw.randint(0, 20_000)]))
                pack = [b"%d %d " % (turn, n) + draw.randbytes(900) for n in range(20)]
                assert writer.append(pack) == IdRange(len(expected) + 1, len(expected) + 20)
                expected += pack
            line.cut("server", 30_000)
            assert bodies(store.log(SPEC)) == expected
        assert line.cuts >= 4


# The server


@pytest.mark.parametrize("hours", [5, -5])
def test_p10_one_writer_holds_when_the_clock_that_leases_run_on_jumps(any_store: str, hours: int) -> None:
    with open_store(any_store) as one, open_store(any_store) as other:
        writer = one.log(SPEC).writer()
        writer.append([b"a"])
        for store in (one, other):
            shift(store, hours * 3600)
        if hours > 0:  # the lease has run out: whoever comes is let in, and the first one is out
            with other.log(SPEC).writer() as second:
                second.append([b"b"])
                with pytest.raises(FencedError):
                    writer.append([b"too late"])
        else:
            with pytest.raises(WriterBusyError):
                other.log(SPEC).writer()
            writer.append([b"b"])
        writer.close()
        with other.log(SPEC).writer() as third:
            third.append([b"c"])
        assert bodies(one.log(SPEC)) == [b"a", b"b", b"c"]
        assert one.log(SPEC).verify().ok


def shift(store: LogStore, seconds: float) -> None:
    """Let the clock of leases go ahead by *seconds*."""
    backend: Any = store._backend
    time = backend.lease_time
    backend.lease_time = lambda: time() + int(seconds * 1e6)


# Damage


@pytest.fixture
def rows(log: Log, connection: DatabaseConnection, table: str) -> dict[int, tuple[Any, ...]]:
    """The rows of the five blocks of a log, by their first ids."""
    return {int(row[0]): tuple(row) for row in connection.rows(f"SELECT * FROM {table}")}


def test_a_block_that_is_there_twice_is_told(
    log: Log, connection: DatabaseConnection, table: str, rows: dict[int, tuple[Any, ...]]
) -> None:
    again = (25, *rows[21][1:])
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(again))})", *again)
    check_told(log, good=range(1, 31), told="but the store lists it under")


def test_blocks_that_changed_places_are_told(
    log: Log, connection: DatabaseConnection, table: str, rows: dict[int, tuple[Any, ...]]
) -> None:
    for first, data in ((11, rows[31][-1]), (31, rows[11][-1])):
        connection.execute(f"UPDATE {table} SET data = ? WHERE first_id = ?", data, first)
    check_told(log, good=range(1, 11), told="but the store lists it under")
    assert len(log.verify().problems) == 2


@pytest.mark.parametrize("damage", ["cut", "zeroed", "empty", "longer"])
def test_a_block_that_is_not_whole_is_told(
    log: Log, connection: DatabaseConnection, table: str, rows: dict[int, tuple[Any, ...]], damage: str
) -> None:
    data = rows[21][-1]
    changed = {"cut": data[:-5], "zeroed": bytes(len(data)), "empty": b"", "longer": data + b"\0"}[damage]
    connection.execute(f"UPDATE {table} SET data = ? WHERE first_id = 21", changed)
    check_told(log, good=range(1, 21), told="is damaged")


def check_told(log: Log, good: range, told: str) -> None:
    seen: list[int] = []
    with pytest.raises((CorruptBlockError, MissingBlockError), match=told):
        for batch in log.read():
            seen += batch.ids
    assert seen == list(good)
    assert not log.verify().ok


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite with a log of 400 messages."""
    path = tmp_path_factory.mktemp("sound") / "log.db"
    draw = random.Random(3)
    with open_store(f"sqlite:///{path}") as store, store.log(SPEC).writer() as writer:
        for turn in range(40):
            writer.append([b"%d " % (turn * 10 + n) + draw.randbytes(200) for n in range(10)])
    return path


@pytest.mark.parametrize("kind", ["bit", "page", "end"])
def test_damage_anywhere_in_a_file_of_sqlite_is_told_or_does_no_harm(sound: Path, tmp_path: Path, kind: str) -> None:
    draw = random.Random(7)
    with open_store(f"sqlite:///{sound}", read_only=True) as store:
        expected = bodies(store.log(SPEC, create=False))
    told = 0
    for turn in range(sized(ci=60, long=1500)):
        path = Path(shutil.copy(sound, tmp_path / f"{turn}.db"))
        harm(path, kind, turn, draw)
        found, problems = what_is_left(path)
        assert found == expected[: len(found)], "nothing that was never sent"
        assert problems or found == expected, "and nothing missing without a word"
        told += bool(problems)
        path.unlink()
    assert told


def harm(path: Path, kind: str, seed: int, draw: random.Random) -> None:
    length = path.stat().st_size
    with path.open("r+b") as file:
        if kind == "page":
            file.seek(draw.randrange(length // 8192) * 8192)
            file.write(bytes(8192))
        elif kind == "end":
            file.truncate(draw.randrange(length))
    if kind == "bit":
        flip_bit(path, seed)


def what_is_left(path: Path) -> tuple[list[bytes], list[str]]:
    """The bodies that can be read, and what is told: while reading, or by verify."""
    found: list[bytes] = []
    try:
        with open_store(f"sqlite:///{path}", read_only=True) as store:
            log = store.log(SPEC, create=False)
            for batch in log.read():
                found += [message.body for message in batch]
            return found, list(log.verify().problems)
    except LogError as error:
        return found, [str(error)]


# Readers


def test_a_message_that_cannot_be_handled_is_given_again_and_holds_up_nobody(any_store: str) -> None:
    with open_store(any_store) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"poison" if n == 5 else b"fine" for n in range(1, 31)])
        with log.reader("worker") as reader:
            for batch in reader.batches(7):
                for message in batch:
                    if message.body != b"poison":
                        reader.ack(message.id)
        assert log.pointer("worker") == 4
        with log.reader("worker") as reader:
            assert [message.id for batch in reader.batches() for message in batch] == [5]
            reader.ack(5)
        assert log.pointer("worker") == 30


def test_a_reader_that_is_slow_has_only_a_little_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SqliteBackend.read
    calls: list[int] = []

    def counted(self: SqliteBackend, *arguments: Any, **options: Any) -> Any:
        found = read(self, *arguments, **options)
        calls.append(sum(len(block.data) for block in found))
        return found

    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        log = store.log(LogSpec("large", compression="plain"))
        with log.writer() as writer:
            for _ in range(40):
                writer.append([bytes(1 << 20)])
        monkeypatch.setattr(SqliteBackend, "read", counted)
        with log.reader("slow") as reader:
            batches = reader.batches()
            next(batches)
            assert len(calls) <= 2
            assert sum(calls) <= 10 << 20
            batches.close()  # type: ignore[attr-defined]


# Settings that change


def test_a_log_goes_on_when_blocks_are_cut_and_compressed_otherwise(any_store: str) -> None:
    specs = [
        LogSpec("weather", compression="plain", block_messages=3),
        LogSpec("weather", compression="zstd", block_messages=65_536),
        LogSpec("weather", compression="lz4", block_bytes=500),
    ]
    expected: list[bytes] = []
    for turn in range(6):
        with open_store(any_store) as store, store.log(specs[turn % 3]).writer() as writer:
            pack = [b"%d %d" % (turn, n) * 10 for n in range(50)]
            writer.append(pack)
            expected += pack
    with open_store(any_store) as store:
        assert bodies(store.log(specs[0])) == expected
        assert store.log(specs[0]).verify().ok


@pytest.mark.parametrize("scheme", ["segments", "sqlite"])
def test_where_the_reserve_gives_no_room_a_writer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """As where the files or the quota of a disk are used up, but not its bytes."""
    calls: list[str] = []

    def full(*_: object) -> None:
        calls.append("no room")
        assert len(calls) < 20, "this never ends"
        raise StorageFullError("no room")

    with open_store(f"{scheme}:///{tmp_path / 'log'}") as store:
        log = store.log(SPEC)
        log.writer().close()
        with monkeypatch.context() as patch:
            patch.setattr(segments_module, "write_lease", full)
            patch.setattr(SqliteBackend, "_transaction", full)
            with pytest.raises(StorageFullError):
                log.writer()
        assert len(calls) <= 1 + SHARES
        log.writer().close()
