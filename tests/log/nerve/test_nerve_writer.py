"""One publisher a queue, whatever is lost on the way and whoever else is at work."""

from __future__ import annotations

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import FencedError, IdRange, Log, LogStore, WriterBusyError, open_store
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.backends.nerve import NerveBackend, parse_nerve
from millstream.log.backends.nerve import writing as writing_module
from millstream.log.reading.reader import ACK_SECONDS
from support.faulty_connection import ConnectionFault, FaultyDriver
from support.nerve_original import NAME, OPTIONS, SPEC, OpenOriginal, OriginalQueue, bodies

# Replies that are lost


STEPS = ["START", "UPDATE millstream_nerve_queues SET last_id", "UPDATE `queue", "INSERT INTO `queue", "COMMIT"]
FAULTS = [ConnectionFault(step, when) for step in STEPS for when in ("before", "after")]
FAULTS += [ConnectionFault("INSERT INTO `queue", "before", 1213), ConnectionFault("COMMIT", "before", 1213)]


@pytest.mark.parametrize("count", [5, 30])
def test_a_commit_whose_reply_is_lost_is_done_exactly_once(
    url: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "TOGETHER", 10)
    clock, place = VirtualClock(), parse_nerve(url)
    driver = FaultyDriver(choose_driver(place.database))
    with LogStore(NerveBackend(place, clock, driver=driver, patience=30), clock, bodies_only=True) as store:
        log, expected = store.log(SPEC), []
        with log.writer("importer") as writer:
            for sequence, fault in enumerate(FAULTS, 1):
                driver.faults.append(fault)
                pack = [b"%d %d" % (sequence, n) for n in range(count)]
                assert writer.append(pack, sequence=sequence) == IdRange(len(expected) + 1, len(expected) + count)
                assert not driver.faults, f"{fault} has happened"
                expected += pack
        assert bodies(log) == expected
        with log.writer("importer") as writer:
            assert writer.sequence == len(FAULTS)


# Rate


def test_each_table_gets_no_more_statements_than_asked_for(queues: str) -> None:
    clock = VirtualClock()
    place = parse_nerve(f"{queues}?{OPTIONS}&rps=50")
    with LogStore(NerveBackend(place, clock), clock, bodies_only=True) as store, store.log(SPEC).writer() as writer:
        writer.append([b"x"] * 3)
        begin = clock.monotonic()
        writer.append([b"x"] * 3)
        writer.append([b"x"])
        assert clock.monotonic() - begin == pytest.approx(0.04)
    with LogStore(NerveBackend(parse_nerve(f"{queues}?{OPTIONS}"), clock), clock, bodies_only=True) as store:
        begin = clock.monotonic()
        with store.log(SPEC).writer() as writer:
            writer.append([b"x"])
        assert clock.monotonic() == begin


# An original publisher at the same time


def test_p10_one_writer_a_pointer_that_somebody_else_moved_stops_ours(log: Log, open_original: OpenOriginal) -> None:
    with log.writer() as writer:
        writer.append([b"a"])
        theirs = open_original()
        theirs.send([b"theirs"] * 3)
        for count in (1, 3000):
            with pytest.raises(FencedError, match="another publisher is writing to queue"):
                writer.append([b"ours"] * count)
    assert bodies(log) == [b"a", b"theirs", b"theirs", b"theirs"]


@pytest.mark.parametrize("count", [3, 3000])
def test_p10_one_writer_ours_stops_at_rows_of_somebody_else_and_does_not_overwrite_them(
    log: Log, open_original: OpenOriginal, count: int
) -> None:
    with log.writer() as writer:
        writer.append([b"a"])
        theirs = open_original()
        theirs.insert([b"theirs"] * 3)
        with pytest.raises(FencedError, match=r"from id [234] on"):
            writer.append([b"ours"] * count)
        theirs.move()
    assert bodies(log) == [b"a", b"theirs", b"theirs", b"theirs"]


def test_p10_one_writer_ours_does_not_begin_while_somebody_else_is_at_work(
    original: OriginalQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    original.insert([b"under way"])
    with LogStore(NerveBackend(parse_nerve(url), clock), clock, bodies_only=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(clock, "sleep", lambda _: original.send([b"more"]))
            with pytest.raises(WriterBusyError, match="without a lease"):
                store.log(SPEC).writer()
        with store.log(SPEC).writer() as writer:
            assert writer.last_id == 102


@pytest.mark.parametrize("count", [3, 3000])
def test_p10_one_writer_a_stale_one_of_ours_stores_nothing_more(log: Log, url: str, count: int) -> None:
    with open_store(url) as other:
        stale = log.writer()
        stale.append([b"a"])
        stale._committer._backend.release_lease(NAME, epoch=1)
        with other.log(SPEC).writer() as writer:
            writer.append([b"newer"])
            with pytest.raises(FencedError, match="another writer has taken over"):
                stale.append([b"too late"] * count)
            writer.append([b"newer"])
        stale.close()
    assert bodies(log) == [b"a", b"newer", b"newer"]


def test_a_reader_whose_pointer_a_receiver_of_the_original_moves_is_fenced(original: OriginalQueue, log: Log) -> None:
    reader = log.reader("worker")
    reader.ack(IdRange(1, 10))
    reader.flush()
    original.move("worker", 30)
    reader.ack(IdRange(11, 20))
    with pytest.raises(FencedError):
        reader.flush()
    reader.close()
    assert log.pointer("worker") == 30


# Defects of the original that are particular to its tables; the others are in test_log_original_defects.py


def test_p10_one_writer_two_publishers_of_ours_cannot_be_at_work_at_once(log: Log, url: str) -> None:
    """Nerve: 47 % of the confirmed messages were overwritten."""
    with open_store(url) as other, log.writer() as writer:
        writer.append([b"a"])
        with pytest.raises(WriterBusyError, match="process"):
            other.log(SPEC).writer()
        writer.append([b"b"])
    assert bodies(log) == [b"a", b"b"]


def test_the_last_acknowledgements_are_stored_while_the_reader_idles(original: OriginalQueue, url: str) -> None:
    """Nerve: the pointer stayed 4,786 to 11,015 behind, for ever."""
    clock = VirtualClock()
    store = LogStore(NerveBackend(parse_nerve(url), clock), clock, bodies_only=True)
    with store, store.log(SPEC).reader("worker") as reader:
        for batch in reader.batches():
            reader.ack(batch.ids)
        assert original.pointer("worker") == 0, "acknowledgements are gathered"
        clock.advance(ACK_SECONDS)
        deadline = SystemClock().monotonic() + 30
        while original.pointer("worker") != 100 and SystemClock().monotonic() < deadline:
            pass
        assert original.pointer("worker") == 100, "and stored although nothing more is acknowledged"


def test_a_lone_send_waits_for_no_timer(log: Log) -> None:
    """Nerve: 20.6 ms."""
    clock = SystemClock()
    taken = []
    with log.writer() as writer:
        for _ in range(100):
            begin = clock.monotonic()
            writer.append([b"test"])
            taken.append(clock.monotonic() - begin)
    assert sorted(taken)[50] < 0.02
