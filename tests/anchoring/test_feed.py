"""From a log of batches to the journal: no batch is passed over, whichever database lost its last commits."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import CutLimits, LogLedger
from millstream.anchoring.errors import AnchoringError, CasUnavailableError
from millstream.anchoring.feed import CONSUMER, AnchorFeed, AnchorSchedule, check_conflicts
from millstream.anchoring.journal_reader import JournalReader
from millstream.anchoring.journal_tables import payloads
from millstream.anchoring.ledger import LedgerEntry
from millstream.batching import BatchConfig, Rulebook
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.message import Message
from millstream.log import Log, LogSpec, LogStore, StorageUnavailableError, open_store

RULES = Rulebook(BatchConfig(50, 20))


@pytest.fixture
def store() -> Iterator[LogStore]:
    with open_store("memory://") as opened:
        yield opened


def add_batches(store: LogStore, first: int, last: int, body: bytes = b"x") -> tuple[Log, Log]:
    """One message with each of the numbers, and a batch of it; the two logs."""
    logs = store.log(LogSpec("in")), store.log(LogSpec("in.batches", kind="batches"))
    numbers = range(first, last + 1)
    with logs[0].writer() as messages, logs[1].writer() as batches:
        messages.append([Message(body, "", "pump", number) for number in numbers])
        lines = [
            b'{"batch":"b%d","source":"pump","start":%d,"end":%d,"cut":"time","events":[%d]}' % ((number,) * 4)
            for number in numbers
        ]
        batches.append([Message(line) for line in lines])
    return logs


def test_batches_that_the_journal_lost_at_a_failover_are_anchored(
    parts: Any, store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    source, batches = add_batches(store, 1, 3)
    assert AnchorFeed(source, batches, parts.writer, RULES).step().batches == 3
    parts.engine.dispose()
    shutil.copy(parts.folder / "node.db", parts.folder / "replica.db")
    add_batches(store, 4, 5)
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    assert (feed.step().batches, batches.pointer(CONSUMER)) == (2, 5)
    parts.engine.dispose()
    shutil.move(parts.folder / "replica.db", parts.folder / "node.db")
    with caplog.at_level(logging.WARNING):
        assert feed.step(force=True).batches == 2
    assert "the batches of log 'in.batches' were passed on up to message 3, and" in caplog.text
    assert [len(parts.index.find_batch("in", f"b{number}")) for number in range(1, 6)] == [1] * 5
    assert feed.step(force=True).batches == 0


def test_an_earlier_position_of_the_log_counts(parts: Any, store: LogStore) -> None:
    source, batches = add_batches(store, 1, 3)
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    feed.step(force=True)
    batches.set_pointer(CONSUMER, 1)
    again = feed.step(force=True)
    assert (again.batches, again.known, again.anchors) == (0, 2, 0)
    assert (batches.pointer(CONSUMER), parts.journal.fed("in.batches")) == (3, 3)


def test_batches_that_were_trimmed_before_they_were_anchored_are_reported_once(
    parts: Any, store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    source, batches = add_batches(store, 1, 3)
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    feed.step(force=True)
    _, batches = add_batches(store, 4, 8)
    batches.trim(7)
    with caplog.at_level(logging.WARNING):
        feed.step(force=True)
        feed.step(force=True)
    assert caplog.text.count("messages 4 to 6 of log 'in.batches' were trimmed before") == 1
    assert [len(parts.index.find_batch("in", f"b{number}")) for number in (6, 7, 8)] == [0, 1, 1]


def test_known_batches_are_read_again_after_their_messages_were_trimmed(parts: Any, store: LogStore) -> None:
    source, batches = add_batches(store, 1, 5)
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    feed.step(force=True)
    add_batches(store, 6, 7)
    source.trim(4)
    batches.set_pointer(CONSUMER, 1)  # as does a database whose row an earlier version left behind
    again = feed.step(force=True)
    assert (again.batches, again.known, again.anchors) == (2, 4, 1)
    assert [len(parts.index.find_batch("in", f"b{number}")) for number in range(1, 8)] == [1] * 7


def test_batches_whose_messages_were_trimmed_before_are_named_and_can_be_left_out(parts: Any, store: LogStore) -> None:
    source, batches = add_batches(store, 1, 5)
    source.trim(3)
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    with pytest.raises(
        AnchoringError, match=r"of 2 batches \(b1, b2\) are no longer in log 'in': .* retention of log 'in'"
    ):
        feed.step(force=True)
    assert batches.info().consumers == {CONSUMER: 0}
    batches.set_pointer(CONSUMER, 2)
    assert feed.step(force=True).batches == 3


@pytest.mark.parametrize("to", [0, 6])
def test_a_consumer_that_is_moved_while_its_log_is_read_stays_there(
    parts: Any, store: LogStore, monkeypatch: pytest.MonkeyPatch, to: int
) -> None:
    monkeypatch.setattr("millstream.anchoring.feed.GROUP_MESSAGES", 2)
    source, batches = add_batches(store, 1, 8)
    add = parts.journal.add

    def sought(*given: Any, **more: Any) -> Any:
        if batches.pointer(CONSUMER) == 2:  # as does `log seek`
            batches.set_pointer(CONSUMER, to)
            parts.journal.forget_fed("in.batches")
        return add(*given, **more)

    feed = AnchorFeed(source, batches, parts.writer, RULES)
    with monkeypatch.context() as patched:
        patched.setattr(parts.journal, "add", sought)
        feed.step(force=True)
    assert (batches.pointer(CONSUMER), parts.journal.fed("in.batches")) == (to, None)
    again = feed.step(force=True)
    assert (again.batches, again.known) == ((4, 4) if to == 0 else (2, 0))


def test_anchored_batches_are_skipped_although_the_journal_lost_them_and_their_messages_were_trimmed(
    parts: Any, store: LogStore
) -> None:
    source, batches = add_batches(store, 1, 5)
    AnchorFeed(source, batches, parts.writer, RULES).step(force=True)
    parts.journal.forget_anchored()
    batches.set_pointer(CONSUMER, 0)
    add_batches(store, 6, 7)
    source.trim(3)
    again = AnchorFeed(source, batches, parts.writer, RULES).step(force=True)
    assert (again.batches, again.known, again.anchors) == (2, 5, 1)
    totals = parts.journal.totals()
    assert (totals.observed, totals.rejected) == (2, 0)
    assert [len(parts.index.find_batch("in", f"b{number}")) for number in range(1, 8)] == [1] * 7


def test_a_batch_with_the_id_of_an_anchored_one_and_another_message_is_not_skipped(parts: Any, store: LogStore) -> None:
    source, batches = add_batches(store, 1, 2)
    AnchorFeed(source, batches, parts.writer, RULES).step(force=True)
    parts.journal.forget_anchored()
    with open_store("memory://") as other:
        source, batches = add_batches(other, 1, 2, b"other")
        AnchorFeed(source, batches, parts.writer, RULES).step(force=True)
    assert parts.journal.totals().rejected == 2
    reader = JournalReader(parts.engine)
    assert [(one.messages, one.refused) for one in reader.open_messages()] == [(0, 0)], "they are counted as anchored"


def test_a_backlog_is_anchored_while_it_is_read(
    make_parts: Any, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.anchoring.feed.GROUP_MESSAGES", 2)
    parts = make_parts(limits=CutLimits(cut_bytes=300))
    source, batches = add_batches(store, 1, 8)
    most, add = [0], parts.journal.add

    def counted(*given: Any, **more: Any) -> Any:
        most.append(parts.journal.totals().accepted)
        return add(*given, **more)

    monkeypatch.setattr(parts.journal, "add", counted)
    assert AnchorFeed(source, batches, parts.writer, RULES).step(force=True).batches == 8
    assert len(most) == 5 and max(most) <= 3


class _HeldLedger:
    """The ledger *ledger*, which another process holds while *clock* is before *until* (in seconds)."""

    def __init__(self, ledger: LogLedger, other: LogLedger, clock: VirtualClock, until: float) -> None:
        self._ledger, self._other, self._clock, self._until = ledger, other, clock, until

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
        if self._clock.monotonic() >= self._until:
            return self._ledger.append(anchor_string, after=after)
        with self._other.exclusive():
            return self._ledger.append(anchor_string, after=after)


def busy_feed(make_parts: Any, store: LogStore, seconds: float) -> tuple[Any, AnchorFeed, VirtualClock]:
    """A feed of three batches, whose ledger another process holds for so many *seconds*."""
    source, batches = add_batches(store, 1, 3)
    clock = VirtualClock()
    held = _HeldLedger(LogLedger(store, clock), LogLedger(store, clock), clock, seconds)
    parts = make_parts(ledger=held, clock=clock)
    return parts, AnchorFeed(source, batches, parts.writer, RULES), clock


def test_an_anchor_waits_for_another_process_that_writes_to_the_ledger(make_parts: Any, store: LogStore) -> None:
    parts, feed, clock = busy_feed(make_parts, store, 5.0)
    assert feed.step(force=True).anchors == 1
    assert 5.0 <= clock.monotonic() < 6.0
    assert parts.journal.totals().observed == 3


def test_a_ledger_that_does_not_answer_is_asked_once(make_parts: Any, store: LogStore) -> None:
    clock = VirtualClock()

    class Silent(LogLedger):
        def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
            clock.advance(120.0)  # what the log store waits for its server
            raise StorageUnavailableError

    source, batches = add_batches(store, 1, 3)
    parts = make_parts(ledger=Silent(store, clock), clock=clock)
    with pytest.raises(StorageUnavailableError):
        AnchorFeed(source, batches, parts.writer, RULES).step(force=True)
    assert clock.monotonic() == 120.0


def test_a_schedule_tries_again_while_another_process_writes_for_long(make_parts: Any, store: LogStore) -> None:
    parts, feed, clock = busy_feed(make_parts, store, 90.0)
    schedule = AnchorSchedule(feed, clock, every=30 * MICROSECONDS)
    clock.advance(30.0)
    assert schedule.when_due() is None  # not an error, which would end what batches
    schedule.finish()
    assert (feed.total.batches, parts.journal.totals().cut) == (3, 3)
    while schedule.when_due() is None:
        clock.advance(0.25)
    assert 90.0 <= clock.monotonic() < 92.0
    assert (feed.total.batches, feed.total.anchors, parts.journal.totals().observed) == (3, 1, 3)


def test_a_feed_begins_while_the_files_of_an_open_cut_cannot_be_written(parts: Any, store: LogStore) -> None:
    source, batches = add_batches(store, 1, 3)
    parts.faults.fail_next(2)
    with pytest.raises(CasUnavailableError):
        AnchorFeed(source, batches, parts.writer, RULES).step(force=True)
    assert parts.journal.open_cuts()
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    with pytest.raises(CasUnavailableError):
        feed.step(force=True)
    assert feed.step(force=True).anchors == 1


def test_a_schedule_warns_when_a_damaged_journal_keeps_batches_waiting(
    make_parts: Any, store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    source, batches = add_batches(store, 1, 3)
    clock = VirtualClock()
    parts = make_parts(ledger=LogLedger(store, clock), clock=clock)
    feed = AnchorFeed(source, batches, parts.writer, RULES)
    feed.step()
    lost = sa.delete(payloads).where(payloads.c.seq == sa.select(sa.func.min(payloads.c.seq)).scalar_subquery())
    with parts.engine.begin() as connection:
        connection.execute(lost)
    schedule = AnchorSchedule(feed, clock, every=30 * MICROSECONDS)
    warned = []
    while clock.monotonic() < 160.0:
        schedule.when_due()
        warned += [(clock.monotonic(), one.getMessage()) for one in caplog.records if one.levelno == logging.WARNING]
        caplog.clear()
        clock.advance(1.0)
    assert [seconds for seconds, _ in warned] == [90.0, 150.0]
    assert "waiting for 1 min to be anchored" in warned[0][1] and "Restore the node's database" in warned[0][1]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], r"1 batch of log 'l' \(a\) was recorded with other messages"),
        (["a", "b", "c"], r"3 batches of log 'l' \(a, b, c\) were recorded"),
        (["a", "b", "c", "d"], r"4 batches of log 'l' \(a, b, c, …\) .* verify-batches l --batches BATCHES`"),
    ],
)
def test_batches_with_other_messages_are_counted_and_named(names: list[str], text: str) -> None:
    with pytest.raises(AnchoringError, match=text):
        check_conflicts("l", names)
