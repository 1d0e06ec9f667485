"""The batcher over columns gives, step by step, what the batcher gives record by record, and takes over from it."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import (
    BatchConfig,
    Batcher,
    BoundBrokenError,
    Event,
    EventBatch,
    FlushedError,
    Override,
    Reject,
    Rulebook,
    SnapshotError,
)
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.columnbatcher import Closed, ColumnBatcher
from millstream.batching.snapshot import decode_snapshot

LONG = os.environ.get("MILLSTREAM_TEST_SIZE") == "long"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600 if LONG else 300)]
many = settings(max_examples=10_000 if LONG else 200, deadline=None)

plain_rules = st.builds(
    BatchConfig,
    window=st.integers(0, 40),
    max_delay=st.integers(0, 25),
    leap=st.none() | st.integers(0, 10),
    conflict_cut=st.sampled_from(["at_event", "midpoint"]),
    max_count=st.none() | st.integers(1, 6),
    max_bytes=st.none() | st.integers(1, 30),
).map(Rulebook)
policies = st.sampled_from(["side", "amend"]).map(lambda late: BatchConfig(20, 10, late=late, grace=25)).map(Rulebook)
overridden = st.just(Rulebook(BatchConfig(20, 10), (Override(BatchConfig(5, 20), "b"),)))

rows = st.lists(
    st.tuples(
        st.sampled_from(("", "b", "ü\n")),
        st.sampled_from(("a", "b", 'c"', "dé")),
        st.integers(-50, 150),
        st.integers(-12, 45),
        st.sampled_from(("", "x", "y\\")),
    ),
    max_size=60,
)


def table_of(events: list[Event]) -> pa.Table:
    return pa.table({name: [getattr(event, name) for event in events] for name in EVENT_SCHEMA.names}, EVENT_SCHEMA)


def named(closed: Closed) -> tuple[list[EventBatch], list[Reject]]:
    batches = [
        EventBatch(**row | {"events": tuple(row["events"]), "amends": tuple(row["amends"])})
        for row in closed.batches.to_pylist()
    ]
    return in_order(batches, [Reject(**row) for row in closed.rejects.to_pylist()])


def in_order(batches: list[EventBatch], rejects: list[Reject]) -> tuple[list[EventBatch], list[Reject]]:
    batches = sorted(batches, key=lambda batch: (batch.source, batch.start, batch.batch))
    return batches, sorted(rejects, key=lambda reject: (reject.rejected, reject.reason))


@many
@given(st.one_of(plain_rules, policies, overridden), rows, st.data())
def test_p5_each_step_gives_what_the_batcher_gives_whichever_of_them_goes_on(
    rules: Rulebook, drawn: list[tuple[str, str, int, int, str]], data: st.DataObject
) -> None:
    events = [
        Event(number, source, key, time, time + delay, digest, (ord(key[0]) * 7 + time * 5 + len(digest)) % 37 // 3)
        for number, (source, key, time, delay, digest) in enumerate(drawn, start=1)
    ]
    events.sort(key=lambda event: event.received_at)
    batcher, columns = Batcher.of(rules), ColumnBatcher(rules)
    while events:
        size = data.draw(st.integers(1, 12))
        chunk, events = events[:size], events[size:]
        bound = data.draw(st.integers(chunk[-1].received_at, events[0].received_at)) if events else 300
        received, settled = batcher.receive_many(chunk), batcher.advance(bound)
        expected = in_order(received.batches + settled.batches, received.rejects + settled.rejects)
        assert named(columns.step(table_of(chunk), bound)) == expected
        assert columns.clock == batcher.clock == bound
        if data.draw(st.booleans()):
            batcher, columns = Batcher.restore(columns.snapshot(), rules), ColumnBatcher(rules, batcher.snapshot())
    assert named(columns.flush()) == in_order(*batcher.flush())


def test_a_step_without_records_closes_what_is_due() -> None:
    columns = ColumnBatcher(BatchConfig(50, 20))
    columns.step(table_of([Event(1, "p", "a", 110, 120)]), 120)
    assert not len(columns.step(EVENT_SCHEMA.empty_table(), 180).batches)
    assert columns.step(EVENT_SCHEMA.empty_table(), 181).batches["closed_at"].to_pylist() == [181]
    assert not len(columns.flush().batches)


def test_a_record_from_before_the_clock_is_refused_whole() -> None:
    columns = ColumnBatcher(BatchConfig(50, 20))
    columns.step(EVENT_SCHEMA.empty_table(), 100)
    with pytest.raises(BoundBrokenError, match="received at 99, but the clock stands at 100"):
        columns.step(table_of([Event(1, "p", "a", 99, 99), Event(2, "p", "b", 101, 101)]), 101)
    assert columns.clock == 100


def test_after_the_end_of_the_stream_nothing_is_taken() -> None:
    columns = ColumnBatcher(BatchConfig(50, 20))
    columns.flush()
    with pytest.raises(FlushedError):
        columns.step(EVENT_SCHEMA.empty_table(), 1)


def test_a_snapshot_under_other_rules_or_damaged_is_refused() -> None:
    columns = ColumnBatcher(BatchConfig(50, 20))
    columns.step(table_of([Event(1, "p", "a", 110, 120)]), 120)
    data = columns.snapshot()
    with pytest.raises(SnapshotError, match=r"window=50 .*window=60"):
        ColumnBatcher(BatchConfig(60, 20), data)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(SnapshotError):
            decode_snapshot(bytes(damaged))
