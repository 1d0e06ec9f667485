"""Readers while others append, and while others take their place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import FencedError, IdRange, Log, LogInputError, LogSpec, LogStore
from millstream.log.backends.memory import MemoryBackend


@pytest.fixture
def log() -> Iterator[Log]:
    clock = VirtualClock()
    with LogStore(MemoryBackend(clock), clock) as store:
        yield store.log(LogSpec("weather", block_messages=5))


def test_messages_before_those_that_were_acknowledged_early_are_delivered(log: Log) -> None:
    with log.writer() as writer, log.reader("me") as reader:
        writer.append([b"x"] * 10)
        batches = reader.batches()
        first = next(batches)
        writer.append([b"x"] * 10)
        reader.ack(IdRange(13, 14))  # known from elsewhere; the batches that are given still end at id 10
        delivered = [first, *batches, *reader.batches()]
        assert [id_ for batch in delivered for id_ in batch.ids] == [*range(1, 13), *range(15, 21)]


def test_a_flush_of_a_reader_that_was_replaced_tells_that_nothing_was_stored(log: Log) -> None:
    with log.writer() as writer:
        writer.append([b"x"] * 10)
    replaced = log.reader("me")
    replaced.ack(1)
    with log.reader("me"):
        replaced._flush_later()  # the scheduler thread finds out first
        with pytest.raises(FencedError, match="acknowledgements of this reader are not stored"):
            replaced.flush()
        replaced.close()
    assert log.pointer("me") == 0


def test_an_acknowledgement_in_an_empty_log_is_refused_with_the_reason(log: Log) -> None:
    with log.reader("me") as reader:
        with pytest.raises(LogInputError, match="cannot acknowledge id 1: log 'weather' has no messages"):
            reader.ack(1)
        with log.writer() as writer:
            writer.append([b"x"])
        with pytest.raises(LogInputError, match="cannot acknowledge id 2: log 'weather' has ids 1 to 1"):
            reader.ack(2)
