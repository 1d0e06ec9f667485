"""A batcher that goes by columns where much comes at once, and by records where little does."""

from __future__ import annotations

import time

import pytest

from millstream.batching import BatchConfig, Batcher, SnapshotError
from millstream.batching.adaptive import LARGE_STEP, SMALL_STEPS_BEFORE_SWITCH, AdaptiveBatcher
from millstream.batching.column_batcher import ColumnBatcher
from millstream.bench.fleet import MAX_DELAY, WINDOW, events_of, fleet

RULES = BatchConfig(WINDOW, MAX_DELAY)


def test_large_and_small_steps_give_what_the_batcher_gives() -> None:
    table = fleet(40_000, 100)
    sizes = [5, 3000, *[7] * (SMALL_STEPS_BEFORE_SWITCH + 2), 20_000, *[LARGE_STEP - 1, LARGE_STEP] * 3]
    adaptive, batcher, begin = AdaptiveBatcher(RULES), Batcher.of(RULES), 0
    for size in sizes:
        part = table.slice(begin, size)
        begin, bound = begin + size, part["received_at"][-1].as_py()
        given = adaptive.step(part, bound)
        first, then = batcher.receive_many(events_of(part)), batcher.advance(bound)
        names = [batch.batch for batch in [*first.batches, *then.batches]]
        assert sorted(given.batches["batch"].to_pylist()) == sorted(names)
        assert (adaptive.clock, adaptive.open_sources) == (batcher.clock, batcher.open_sources)
    assert sorted(adaptive.flush().batches["batch"].to_pylist()) == sorted(b.batch for b in batcher.flush().batches)


def test_small_steps_cost_what_their_records_cost() -> None:
    """A step of twenty records takes a fraction of what columns take for it."""
    table = fleet(8000, 1000)

    def seconds(host: type[AdaptiveBatcher] | type[ColumnBatcher]) -> float:
        batcher = host(RULES)
        batcher.step(table.slice(0, 20), table["received_at"][19].as_py())
        begin = time.process_time()
        for first in range(20, 4020, 20):
            part = table.slice(first, 20)
            batcher.step(part, part["received_at"][-1].as_py())
        return time.process_time() - begin

    # the least of three: what the machine does besides only adds
    taken = {host: min(seconds(host) for _ in range(3)) for host in (AdaptiveBatcher, ColumnBatcher)}
    assert taken[AdaptiveBatcher] * 2 < taken[ColumnBatcher]


def test_a_quiet_stream_is_due_when_it_says_and_a_tick_is_never_asked_for_twice() -> None:
    batcher, table = AdaptiveBatcher(RULES), fleet(300, 10)
    batcher.step(table, 0)
    closed = 0
    while (due := batcher.due) is not None:
        given = batcher.step(table.slice(0, 0), due)
        assert len(given.batches)
        closed += sum(map(len, given.batches["events"].to_pylist()))
    assert closed == 300


def test_a_snapshot_under_other_rules_is_refused() -> None:
    with pytest.raises(SnapshotError, match="with the rules"):
        AdaptiveBatcher(BatchConfig(WINDOW + 1, MAX_DELAY), AdaptiveBatcher(RULES).snapshot())
