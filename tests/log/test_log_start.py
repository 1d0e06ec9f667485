"""A writer and a reader that start look at as much of a log as of any other, however long it is: reads are counted."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.log import LogSpec, LogStore, open_store
from millstream.log.backends.mysql import MysqlBackend, parse_address
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.encoding.columns import from_messages

CONSUMER = "kitchen"
SHORT, LONG = 200, 8_000
"""Messages, in blocks of ten. Both end a segment with the same rest."""


def spec_of(count: int) -> LogSpec:
    return LogSpec(f"weather-{count}", block_messages=10, compression="plain")


def fill(store: LogStore, count: int) -> None:
    log = store.log(spec_of(count))
    with log.writer() as writer:
        for first in range(writer.last_id + 1, count + 1, 10):
            writer.append([b"%08d" % number for number in range(first, first + 10)])
    log.set_pointer(CONSUMER, count - 10)


def start(store: LogStore, count: int) -> None:
    """What whoever starts does first: write a message, and read what the consumer has not read."""
    log = store.log(spec_of(count), create=False)
    with log.writer() as writer:
        writer.append([b"one more"])
    with log.reader(CONSUMER) as reader:
        assert sum(len(batch) for batch in reader.batches()) == 11


class Reads:
    """Counts the bytes that are read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self._count)

    def _count(self, handle: int, size: int, offset: int) -> bytes:
        data = self._pread(handle, size, offset)
        self.bytes += len(data)
        return data

    def during(self, work: Callable[[], object]) -> int:
        before = self.bytes
        work()
        return self.bytes - before


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_segments_are_started_by_reading_the_last_one_alone(tmp_path: Path, reads: Reads) -> None:
    def opened(count: int) -> LogStore:
        backend = SegmentsBackend(tmp_path / str(count), SystemClock(), segment_bytes=5_000)
        return LogStore(backend, SystemClock())

    counts = []
    for count in (SHORT, LONG):
        with opened(count) as store:
            fill(store, count)
        with opened(count) as store:
            counts.append(reads.during(lambda store=store, count=count: start(store, count)))
    assert len(list((tmp_path / str(LONG)).rglob("*.seg"))) > 10 * len(list((tmp_path / str(SHORT)).rglob("*.seg")))
    assert counts[1] < counts[0] + 5_000 < 50_000


def test_large_blocks_of_the_last_segment_are_not_read_to_find_its_end(tmp_path: Path, reads: Reads) -> None:
    url, spec = f"segments:///{tmp_path / 'log'}", LogSpec("weather", compression="plain")
    draw = random.Random(1)
    with open_store(url) as store, store.log(spec).writer() as writer:
        for _ in range(16):
            writer.append([draw.randbytes(1 << 20)])
    with open_store(url) as store:
        assert 16 * 100 < reads.during(lambda: store.log(spec).writer().close()) < 300_000
        assert store.log(spec).verify().ok


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The steps that SQLite takes, of all its connections."""
    taken = [0]

    def count() -> int:
        taken[0] += 1
        return 0

    connect = SqliteBackend._connect

    def counted(self: SqliteBackend) -> sqlite3.Connection:
        connection = connect(self)
        connection.set_progress_handler(count, 1)
        return connection

    monkeypatch.setattr(SqliteBackend, "_connect", counted)
    return taken


def test_sqlite_takes_as_many_steps_to_start_a_long_log_as_a_short_one(tmp_path: Path, steps: list[int]) -> None:
    counts = []
    for count in (SHORT, LONG):
        with open_store(f"sqlite:///{tmp_path / str(count)}") as store:
            fill(store, count)
        with open_store(f"sqlite:///{tmp_path / str(count)}") as store:
            before = steps[0]
            start(store, count)
            counts.append(steps[0] - before)
    assert counts[0] > 100
    assert abs(counts[1] - counts[0]) < counts[0] / 10


def test_mariadb_looks_at_as_many_rows_to_start_a_long_log_as_a_short_one(database: str) -> None:
    counts = []
    for count in (SHORT, LONG):
        with open_store(database) as store:
            fill(store, count)
        backend = MysqlBackend(parse_address(database), SystemClock())
        with LogStore(backend, SystemClock()) as store:
            start(store, count)
            rows = backend._pool.call(lambda pooled: pooled.connection.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))
            counts.append(sum(int(number) for _, number in rows))
    assert counts[0] > 5
    assert abs(counts[1] - counts[0]) < 100


@pytest.mark.parametrize("size", [1, 3 << 20])
def test_a_few_messages_of_any_size_are_columns_of_the_same_length(size: int) -> None:
    columns = from_messages([Message(b"x" * size, source="a"), Message(b"", source="b" * size)])
    assert columns.body.to_pylist() == [b"x" * size, b""]
    assert columns.source.to_pylist() == ["a", "b" * size]


def test_the_first_message_of_a_process_is_stored_without_loading_pandas(tmp_path: Path) -> None:
    script = (
        "import sys; from millstream.core.message import Message; from millstream.log import LogSpec, open_store\n"
        f"with open_store({f'sqlite:///{tmp_path}/log.db'!r}) as store, store.log(LogSpec('a')).writer() as writer:\n"
        "    writer.append([Message(b'body', source='source', key='key')])\n"
        "    print('pandas' in sys.modules)\n"
        "    print([(m.body, m.source, m.key) for batch in store.log(LogSpec('a')).read(1, 1) for m in batch])\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output == "False\n[(b'body', 'source', 'key')]\n"


def test_a_server_has_loaded_what_arrow_imports_before_its_first_request() -> None:
    code = (
        "import importlib.util, sys\nimport pyarrow\nfrom millstream.core.interpreter import collect_for_requests\n"
        "collect_for_requests()\nbefore = set(sys.modules)\npyarrow.array(['text'] * 100)\n"
        "print(len(set(sys.modules) - before), importlib.util.find_spec('pandas') is None or 'pandas' in before)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"0 True\n"
