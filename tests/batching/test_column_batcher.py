"""The batcher over columns gives, step by step, what the batcher gives record by record, and takes over from it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batching import (
    BatchConfig,
    Batcher,
    BoundBrokenError,
    Event,
    FlushedError,
    Override,
    Rulebook,
    SnapshotError,
    column_engines,
)
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.column_engines import OrderFreeColumnEngine
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.columns import CutResult, cut_columns
from millstream.batching.snapshot import decode_snapshot
from suite.sizes import examples, sized
from support.closed_tables import in_order, named, table_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(sized(ci=300, long=3600))]
many = examples(ci=200, long=10_000)

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
overridden = st.sampled_from(
    [
        Rulebook(BatchConfig(20, 10), (Override(BatchConfig(5, 20), "b"),)),
        Rulebook(
            BatchConfig(20, 10, late="side", grace=9),
            (Override(BatchConfig(9, 9, late="amend", grace=30), "b", "a"), Override(BatchConfig(2, 30), None, "a")),
        ),
    ]
)
faithful = st.builds(BatchConfig, window=st.integers(0, 40), max_delay=st.integers(0, 25), mode=st.just("faithful"))

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


@many
@given(st.one_of(plain_rules, policies, overridden, faithful.map(Rulebook)), rows, st.data())
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
        assert columns.open_sources == batcher.open_sources
        if data.draw(st.booleans()):
            batcher, columns = Batcher.restore(columns.snapshot(), rules), ColumnBatcher(rules, batcher.snapshot())
    assert named(columns.flush()) == in_order(*batcher.flush())


@many
@given(plain_rules | policies | overridden, rows)
def test_what_is_due_comes_at_that_very_clock_and_not_before(
    rules: Rulebook, drawn: list[tuple[str, str, int, int, str]]
) -> None:
    events = [
        Event(n, source, key, time, time + delay, says) for n, (source, key, time, delay, says) in enumerate(drawn)
    ]
    columns, clock = ColumnBatcher(rules), -100
    columns.step(table_of(events), clock)
    while (due := columns.due) is not None:
        assert due > clock
        early = columns.step(EVENT_SCHEMA.empty_table(), due - 1)
        assert not len(early.batches)
        assert not len(early.rejects)
        assert columns.due == due
        columns, clock = ColumnBatcher(rules, columns.snapshot()), due
        assert columns.due == due
        columns.step(EVENT_SCHEMA.empty_table(), due)
    assert columns.open_sources == 0


def test_a_step_looks_only_at_sources_of_which_something_may_be_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def cut(rows: pa.Table, *rest: Any) -> CutResult:
        looked.append(len(rows))
        return cut_columns(rows, *rest)

    monkeypatch.setattr(column_engines, "cut_columns", cut)
    columns = ColumnBatcher(BatchConfig(100, 100))
    for number in range(500):
        source = f"s{number}"
        columns.step(table_of([Event(number, source, "a", number // 5, number // 5)]), number // 5)
    assert not looked
    columns.step(table_of([Event(900, "s300", "b", 120, 120)]), 120)
    assert looked == [105]  # those of which the first came 100 ago, once; what is left of them is known now
    columns.step(table_of([Event(901, "s400", "a", 81, 181)]), 181)
    assert sum(looked) < 520
    assert columns.open_sources == 500


def test_sources_that_do_not_come_again_are_forgotten() -> None:
    columns = ColumnBatcher(BatchConfig(1, 1))
    for number in range(40):
        names = [f"s{number}.{each}" for each in range(100)]
        events = [Event(n, name, "a", number, number) for n, name in enumerate(names)]
        assert len(columns.step(table_of(events), number).batches) == (100 if number > 2 else 0)
    assert columns.open_sources == 300
    engine = columns._engine
    assert isinstance(engine, OrderFreeColumnEngine)
    assert len(engine._records._codes) < 2400


def test_a_step_without_records_closes_what_is_due() -> None:
    columns = ColumnBatcher(BatchConfig(50, 20))
    columns.step(table_of([Event(1, "p", "a", 110, 120)]), 120)
    assert not len(columns.step(EVENT_SCHEMA.empty_table(), 180).batches)
    assert columns.step(EVENT_SCHEMA.empty_table(), 181).batches["closed_at"].to_pylist() == [181]
    assert not len(columns.flush().batches)


def test_a_record_from_before_the_clock_is_refused_whole() -> None:
    columns = ColumnBatcher(BatchConfig(50, 20))
    columns.step(EVENT_SCHEMA.empty_table(), 100)
    with pytest.raises(BoundBrokenError, match="receive time 99, but the batcher was already advanced to 100"):
        columns.step(table_of([Event(1, "p", "a", 99, 99), Event(2, "p", "b", 101, 101)]), 101)
    assert columns.clock == 100


@pytest.mark.parametrize(
    "rules",
    [
        BatchConfig(50, 20, late="side", grace=60),
        BatchConfig(50, 20, late="amend", grace=60),
        Rulebook(BatchConfig(50, 20), (Override(BatchConfig(5, 5), key="b"),)),
    ],
    ids=["side", "amend", "rulebook"],
)
def test_a_record_from_before_the_clock_leaves_every_engine_as_it_was(rules: BatchConfig | Rulebook) -> None:
    columns = ColumnBatcher(rules)
    columns.step(table_of([Event(1, "p", "a", 90, 95)]), 100)
    before = columns.snapshot()
    with pytest.raises(BoundBrokenError, match="receive time 90, but the batcher was already advanced to 100"):
        columns.step(table_of([Event(2, "p", "a", 105, 110), Event(3, "p", "b", 40, 90)]), 110)
    assert columns.snapshot() == before


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
