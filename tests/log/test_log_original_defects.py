"""What running the original showed to be wrong, one test for each finding: we do not have it.

The findings: two publishers overwrite each other's confirmed messages; the last acknowledgements are never stored;
a missing row is skipped without a word and blocks the pointer for ever; closing a receiver hangs; a reader dies with
its database; a writer retries without pause; a lone send takes 20 ms.
"""

from __future__ import annotations

import sqlite3
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import (
    DamagedLogError,
    FencedError,
    IdRange,
    Log,
    LogSpec,
    LogStore,
    MissingBlockError,
    StorageError,
    WriterBusyError,
    WriterFailedError,
    open_store,
)
from millstream.log.backends.memory import MemoryBackend
from millstream.log.errors import StorageFullError
from millstream.log.reading.reader import ACK_SECONDS
from millstream.testing.waiting import join
from support.faulty_log import FaultyBackend

SPEC = LogSpec("weather", block_messages=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """A log of 100 messages in ten blocks."""
    with open_store(f"sqlite:///{path}") as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 101)])
        yield log


def test_two_publishers_cannot_overwrite_what_the_other_was_confirmed(log: Log, path: Path) -> None:
    """Nerve: 47 % of the confirmed messages were overwritten."""
    with open_store(f"sqlite:///{path}") as other, log.writer() as writer:
        with pytest.raises(WriterBusyError):
            other.log(SPEC).writer()
        writer.append([b"mine"])
    assert [m.body for batch in log.read(101) for m in batch] == [b"mine"]


def test_the_last_acknowledgements_are_stored_while_the_reader_idles() -> None:
    """Nerve: the stored pointer stayed 4,786 to 11,015 behind, for ever."""
    clock = VirtualClock()
    backend = MemoryBackend(clock)
    stored = threading.Event()
    put_state = backend.put_state

    def watched(log: str, key: str, value: bytes, *, version: int) -> bool:
        done = put_state(log, key, value, version=version)
        if b'"pointer":100' in value:
            stored.set()
        return done

    backend.put_state = watched  # type: ignore[method-assign]
    log = LogStore(backend, clock).log(SPEC)
    with log.writer() as writer:
        writer.append([b"x"] * 100)
    with log.reader("worker") as reader:
        for batch in reader.batches():
            reader.ack(batch.ids)
        assert log.pointer("worker") == 0, "acknowledgements are gathered"
        clock.advance(ACK_SECONDS)
        assert stored.wait(30), "and stored although nothing more is acknowledged"
        assert log.pointer("worker") == 100


def test_missing_messages_are_told_and_do_not_hold_up_the_pointer(log: Log, path: Path) -> None:
    """Nerve: a missing id was skipped without a word, and the pointer stuck before it for ever."""
    execute(path, "DELETE FROM blocks_1 WHERE first_id = 51")
    with log.reader("worker") as reader:
        with pytest.raises(MissingBlockError, match="ids 51 to 60 of log 'weather' are missing"):
            for batch in reader.batches():
                reader.ack(batch.ids)
        assert reader.pointer == 50
    log.set_pointer("worker", 60)
    with log.reader("worker") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == list(range(61, 101))


def test_a_missing_tail_is_noticed_by_reader_and_writer(log: Log, path: Path) -> None:
    execute(path, "DELETE FROM blocks_1 WHERE first_id > 90")
    with pytest.raises(MissingBlockError, match="91 to 100"):
        list(log.read())
    with pytest.raises(DamagedLogError, match="should end at id 100"):
        log.writer()
    assert log.info().writer is None, "the lease is given back"


@pytest.mark.parametrize("follow", [False, True])
def test_closing_a_reader_in_the_middle_ends_it(log: Log, follow: bool) -> None:
    """Nerve: Receiver.Close() blocked for ever."""
    reader = log.reader("worker")
    batches = reader.batches(10, follow=follow)
    assert next(batches).first_id == 1
    thread = threading.Thread(target=reader.close)
    thread.start()
    join(thread)


def test_a_store_that_vanishes_while_reading_is_an_error_not_a_crash(log: Log, path: Path) -> None:
    """Nerve: the whole process died with a nil pointer."""
    batches = log.read()
    next(batches)
    execute(path, "DROP TABLE blocks_1")
    with pytest.raises(StorageError, match=r"log\.db"):
        list(log.read())


def test_a_store_that_fails_while_writing_is_told_once_and_the_writer_stops() -> None:
    """Nerve: it retried without pause and logged every payload."""
    clock = VirtualClock()
    backend = FaultyBackend(MemoryBackend(clock), StorageFullError("no space left"))
    log = LogStore(backend, clock).log(SPEC)
    writer = log.writer()
    backend.faults.append("before")
    for _ in range(3):
        with pytest.raises(WriterFailedError, match="no space left") as caught:
            writer.append([b"a"])
        assert isinstance(caught.value.__cause__, StorageFullError)
    assert backend.commits == 1, "after a failed commit nothing more is tried"
    writer.close()
    with log.writer() as again:
        assert again.append([b"b"]) == IdRange(1, 1)
    assert [m.body for batch in log.read() for m in batch] == [b"b"]


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_retry_after_an_unknown_outcome_stores_the_messages_once(fault: Literal["before", "after"]) -> None:
    clock = VirtualClock()
    backend = FaultyBackend(MemoryBackend(clock))
    log = LogStore(backend, clock).log(SPEC)
    with log.writer("importer") as writer:
        writer.append([b"one"], sequence=1)
        backend.faults.append(fault)
        with pytest.raises(WriterFailedError):
            writer.append([b"two"], sequence=2)
    with log.writer("importer") as writer:
        assert writer.sequence == (1 if fault == "before" else 2)
        writer.append([b"two"], sequence=2)
        writer.append([b"three"], sequence=3)
    assert [m.body for batch in log.read() for m in batch] == [b"one", b"two", b"three"]
    assert log.verify().ok


def test_every_thread_that_waits_for_a_commit_that_fails_is_told() -> None:
    clock = SystemClock()
    backend = FaultyBackend(MemoryBackend(clock))
    writer = LogStore(backend, clock).log(SPEC).writer()
    backend.faults.append("before")
    told = []

    def append(number: int) -> None:
        try:
            writer.append([b"x"])
        except WriterFailedError:
            told.append(number)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert sorted(told) == [0, 1, 2, 3, 4]
    writer.close()


def test_messages_that_were_lost_without_anyone_waiting_are_told_when_the_writer_closes() -> None:
    clock = VirtualClock()
    backend = MemoryBackend(clock)
    writer = LogStore(backend, clock).log(SPEC).writer()
    taken = backend.take_lease("weather", epoch=1, holder=b"", until=0)
    assert taken
    writer.append_nowait([b"a"])
    with pytest.raises(FencedError):
        writer.close()


def test_a_lone_append_does_not_wait_for_a_timer(log: Log) -> None:
    """Nerve: 20.6 ms; ours waits for the disk and nothing else, so the median stays well below a timer's tick."""
    clock = SystemClock()
    taken = []
    with log.writer() as writer:
        for _ in range(100):
            begin = clock.monotonic()
            writer.append([b"test"])
            taken.append(clock.monotonic() - begin)
    assert statistics.median(taken) < 0.02


def test_reading_an_empty_part_is_an_empty_answer(log: Log) -> None:
    """Nerve: an empty result for a non-empty range was an index out of range."""
    assert list(log.read(101, 200)) == []
    assert log.block_ranges(101, 200) == []


def execute(path: Path, statement: str) -> None:
    """Do to the file what a fault would do."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()
