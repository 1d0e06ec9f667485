"""Ids whose messages cannot be had are told, never passed over: trimmed ones, missing blocks, damaged blocks."""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import (
    Batch,
    CorruptBlockError,
    Gap,
    IdRange,
    Log,
    LogInputError,
    LogSpec,
    LogStore,
    MissingBlockError,
    copy_log,
    open_store,
)
from millstream.log.backend import Backend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.reading.scan import scan_blocks
from millstream.log.upkeep.trimming import free_blocks, raise_watermarks

SPEC = LogSpec("weather")
DAMAGE = """
    UPDATE blocks_1 SET data = CAST(substr(data, 1, 100) || x'00' || substr(data, 102) AS BLOB) WHERE first_id = 71
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in SQLite with ten blocks of ten messages."""
    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store, store.log(SPEC).writer() as writer:
        for start in range(1, 101, 10):
            writer.append([b"%d" % n for n in range(start, start + 10)])
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    with open_store(f"sqlite:///{path}") as store:
        yield store.log(SPEC)


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


def gaps_of(batches: list[Batch]) -> list[tuple[IdRange, str]]:
    return [(batch.ids, batch.reason) for batch in batches if isinstance(batch, Gap)]


def test_missing_and_damaged_blocks_are_raised_after_all_that_comes_before_them(path: Path, log: Log) -> None:
    change(path, "DELETE FROM blocks_1 WHERE first_id IN (31, 41)")
    change(path, DAMAGE)
    for first_id, before, error in ((1, 30, MissingBlockError), (51, 70, CorruptBlockError)):
        seen: list[int] = []
        with pytest.raises(error):
            for batch in log.read(first_id):
                seen += [message.id for message in batch]
        assert seen == list(range(first_id, before + 1))


def test_missing_and_damaged_blocks_are_given_as_gaps_to_whoever_asks_for_all(path: Path, log: Log) -> None:
    change(path, "DELETE FROM blocks_1 WHERE first_id IN (31, 41, 91)")
    change(path, DAMAGE)
    log.trim(15)
    found = list(log.read(1, gaps="all"))
    assert [m.id for batch in found for m in batch] == [*range(15, 31), *range(51, 71), *range(81, 91)]
    holes: list[tuple[IdRange, str]] = [
        (IdRange(1, 14), "trimmed"),
        (IdRange(31, 50), "missing"),
        (IdRange(71, 80), "corrupt"),
        (IdRange(91, 100), "missing"),
    ]
    assert gaps_of(found) == holes
    covered = [number for batch in found for number in batch.ids]
    assert covered == list(range(1, 101))
    with log.reader("worker") as reader:
        assert gaps_of(list(reader.batches(7, gaps="all"))) == holes
        assert reader.missed == 54
        reader.ack([n for n in range(1, 101) if not any(n in ids for ids, _ in holes)])
        assert reader.pointer == 100


def test_a_reader_that_goes_back_from_a_gap_is_given_it_again(path: Path, log: Log) -> None:
    change(path, "DELETE FROM blocks_1 WHERE first_id = 31")
    with log.reader("worker") as reader:
        batches = reader.batches(10, gaps="all")
        assert [next(batches).last_id for _ in range(4)] == [10, 20, 30, 40]
        reader.seek(25)
        assert [(batch.first_id, batch.last_id) for batch in batches][:3] == [(25, 30), (31, 40), (41, 50)]
        assert reader.missed == 10


def test_the_part_of_a_gap_that_was_asked_for_is_given(path: Path, log: Log) -> None:
    change(path, DAMAGE)
    assert gaps_of(list(log.read(75, 77, gaps="all"))) == [(IdRange(75, 77), "corrupt")]


def test_a_reader_whose_blocks_are_freed_while_it_reads_gets_a_gap(tmp_path: Path) -> None:
    """The mark has moved when the blocks go, so what is missing was trimmed."""
    clock = VirtualClock()

    class Trimmed(SqliteBackend):
        trims = 1

        def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Any:
            if first_id > 30 and self.trims:
                self.trims = 0
                raise_watermarks(self, log, first_id=65)
                assert free_blocks(self, log) > 0
            return super().read(log, first_id, last_id, max_bytes=min(max_bytes, 500))

    with LogStore(Trimmed(tmp_path / "log.db", clock), clock) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            for start in range(1, 101, 10):
                writer.append([b"%0200d" % n for n in range(start, start + 10)])
        found = list(log.read())
        ((ids, reason),) = gaps_of(found)
        assert reason == "trimmed"
        assert ids.last == 60
        assert [number for batch in found for number in batch.ids] == list(range(1, 101))


def test_a_scan_that_was_dropped_may_be_collected_in_the_thread_that_reads_ahead(path: Path) -> None:
    dropped, collected = threading.Event(), threading.Event()

    class Collecting(SqliteBackend):
        def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Any:
            if first_id > 1:
                assert dropped.wait(30)
                gc.collect()
                collected.set()
            return super().read(log, first_id, last_id, max_bytes=300)

    backend = Collecting(path, VirtualClock())
    gc.disable()
    try:
        cycle: list[Any] = [scan_blocks(backend, SPEC.name, IdRange(1, 100))]
        cycle.append(cycle)
        next(cycle[0])
        del cycle
        dropped.set()
        assert collected.wait(30)
    finally:
        gc.enable()
    backend.close()


def test_a_log_with_a_gap_is_not_copied_and_says_why(log: Log) -> None:
    log.trim(15)
    with open_store("memory://") as store:
        with pytest.raises(LogInputError, match="trimmed and begins at id 15"):
            copy_log(log, store.log(SPEC))
        copy = store.log(LogSpec("weather2"), first_id=15)
        assert copy.first_id == 15
    with open_store("memory://") as store:
        copy = store.log(SPEC, first_id=log.first_id)
        assert copy_log(log, copy).messages == 86
        assert [m.body for b in copy.read() for m in b] == [m.body for b in log.read() for m in b]
        log.trim(50)
        assert copy_log(log, copy).messages == 0


def test_space_is_freed_in_shares_so_that_nobody_waits_long(path: Path) -> None:
    clock = VirtualClock()
    calls: list[int] = []

    class Counted(SqliteBackend):
        def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
            calls.append(super().reclaim(log, below, max_bytes=max_bytes))
            return calls[-1]

    backend: Backend = Counted(path, clock)
    raise_watermarks(backend, SPEC.name, first_id=95)
    total = backend.statistics(SPEC.name).bytes
    freed = free_blocks(backend, SPEC.name, share=300)
    assert freed == sum(calls)
    assert len(calls) > 5
    assert backend.statistics(SPEC.name).bytes == total - freed
    assert [b.first_id for b in backend.ranges(SPEC.name, 1, 100)] == [91]
    backend.close()
