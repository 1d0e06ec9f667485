"""History cut by columns gives what the incremental batcher gives."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, ConfigError, Event
from millstream.batching.batch_config import SizeLimits
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.columns import FARTHEST, cut_columns
from millstream.batching.errors import ColumnsError
from millstream.batching.window_boundaries import find_window_boundaries
from millstream.testing.batching_oracle import plain_batches, spelled
from suite.sizes import examples, sized

pytestmark = [pytest.mark.long, pytest.mark.timeout(sized(ci=300, long=3600))]

NAMES = ("id", "source", "key", "event_time", "received_at", "digest", "size")

configs = st.builds(
    BatchConfig,
    window=st.integers(0, 40),
    max_delay=st.integers(0, 25),
    leap=st.none() | st.integers(0, 10),
    conflict_cut=st.sampled_from(["at_event", "midpoint"]),
    max_count=st.none() | st.integers(1, 6),
    max_bytes=st.none() | st.integers(1, 30),
)

records = st.lists(
    st.builds(
        lambda source, key, time, delay, digest, size: (source, key, time, time + delay, digest, size),
        st.sampled_from(("", "b", "ü")),
        st.sampled_from("abcdé"),
        st.integers(-50, 150),
        st.integers(-12, 30),
        st.sampled_from(("", "x", "y")),
        st.integers(0, 12),
    ),
    max_size=60,
).map(lambda rows: [Event(number, *row) for number, row in enumerate(rows, start=1)])


def table_of(events):
    return pa.table({name: [getattr(event, name) for event in events] for name in NAMES}, schema=SCHEMA)


SCHEMA = pa.schema(
    [
        pa.field(
            name, pa.int64() if name in ("id", "event_time", "received_at", "size") else pa.string(), nullable=False
        )
        for name in NAMES
    ]
)


def rejects_of(history):
    return sorted((row["rejected"], row["reason"]) for row in history.rejects.to_pylist())


@examples(ci=100, long=10_000)
@given(configs, records, st.none() | st.integers(-60, 250))
def test_p5_determinism_columns_give_what_the_plain_rule_gives(config, events, clock):
    history = cut_columns(table_of(events), config, clock)
    batches, rejects = plain_batches(events, config, clock)
    assert list(history.named()) == batches
    assert rejects_of(history) == [(reject.rejected, reject.reason) for reject in rejects]
    rows = [(b.source, b.start, b.end, b.closed_at, b.cut, list(b.events)) for b in batches]
    assert [tuple(row.values()) for row in history.batches.to_pylist()] == rows


@pytest.mark.parametrize("cut", ["at_event", "midpoint"])
@pytest.mark.parametrize("max_count", [None, 3])
@pytest.mark.parametrize("scale", [1, 10**9, 2**50], ids=["ticks", "nanoseconds", "beyond one word"])
def test_p5_determinism_columns_give_what_the_incremental_batcher_gives_on_many_sources(cut, scale, max_count):
    draw = random.Random(scale)
    events = [
        Event(n, f"s{draw.randrange(40)}", f"k{draw.randrange(7)}", time * scale, (time + draw.randint(-9, 30)) * scale)
        for n in range(8000)
        for time in [draw.randrange(500)]
    ]
    config = BatchConfig(30 * scale, 20 * scale, conflict_cut=cut, max_count=max_count)
    history = cut_columns(table_of(events), config)
    batcher = Batcher.of(config)
    outcomes = [batcher.receive_many(events), batcher.flush()]
    batches = sorted(outcomes[1].batches, key=lambda batch: (batch.source, batch.start))
    assert list(history.named()) == batches
    rejects = [(reject.rejected, reject.reason) for outcome in outcomes for reject in outcome.rejects]
    assert rejects_of(history) == sorted(rejects)


def test_columns_may_come_in_chunks_or_as_one_record_batch():
    events = spelled("a:110@120 b:120@130 c:130@140 a:140@150 a:155@170")
    table = table_of(events)
    whole = list(cut_columns(table, BatchConfig(50, 20)).named())
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2)])
    assert list(cut_columns(chunked, BatchConfig(50, 20)).named()) == whole
    assert list(cut_columns(table.to_batches()[0], BatchConfig(50, 20)).named()) == whole
    assert [batch.events for batch in whole] == [(1, 2, 3), (4,), (5,)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_p5_determinism_of_equal_times_is_by_what_is_said_then_by_receipt_then_by_id(order):
    """Equal key and time: the lowest digest stays, a copy that says the same is told from one that does not."""
    events = spelled("a:10@14#bb a:10@13#aa a:10@12#aa a:10@12#aa")
    table = table_of([events[n] for n in order])
    histories = [cut_columns(table, BatchConfig(50, 20))]
    batcher = ColumnBatcher(BatchConfig(50, 20))
    closed = [batcher.step(table, 12), batcher.step(table.slice(0, 0), 100)]
    kept = [histories[0].batches["events"].to_pylist(), closed[0].batches["events"].to_pylist()]
    kept[1] += closed[1].batches["events"].to_pylist()
    assert kept == [[[3]], [[3]]]
    refused = [(1, "conflicting_duplicate"), (2, "duplicate"), (4, "duplicate")]
    assert rejects_of(histories[0]) == refused
    assert sorted((row["rejected"], row["reason"]) for part in closed for row in part.rejects.to_pylist()) == refused


def test_no_digest_column_means_no_digests():
    table = table_of(spelled("a:1@1 a:1@2")).drop_columns(["digest"])
    history = cut_columns(table, BatchConfig(50, 20))
    assert rejects_of(history) == [(2, "duplicate")]


def test_no_size_column_means_that_only_the_count_is_capped():
    table = table_of(spelled("a:1@1 b:1@1 c:2@2")).drop_columns(["size"])
    assert [b.events for b in cut_columns(table, BatchConfig(50, 20, max_bytes=1)).named()] == [(1, 2, 3)]
    assert [b.events for b in cut_columns(table, BatchConfig(50, 20, max_count=2)).named()] == [(1, 2), (3,)]


@pytest.mark.parametrize("size", [-1, FARTHEST])
def test_sizes_that_cannot_be_added_up_are_refused(size):
    table = table_of(spelled("a:1@1")).drop_columns(["size"]).append_column("size", pa.array([size]))
    with pytest.raises(ColumnsError, match="sizes must be zero or more"):
        cut_columns(table, BatchConfig(50, 20, max_bytes=1))


def test_no_events_give_no_batches():
    history = cut_columns(table_of([]), BatchConfig(50, 20), clock=5)
    assert (history.batches.num_rows, history.rejects.num_rows, list(history.named())) == (0, 0, [])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda table: table.drop_columns(["key"]), "exactly one column key"),
        (lambda table: table.append_column("id", table["id"]), "exactly one column id"),
        (
            lambda table: table.set_column(3, "event_time", pa.array([1.5])),
            "column event_time .*: cast the column to int64",
        ),
        (lambda table: table.set_column(3, "event_time", pa.array([None], pa.int64())), "event_time .* without nulls"),
        (
            lambda table: table.set_column(3, "event_time", pa.array([FARTHEST])),
            "^an event time is not within .* larger unit",
        ),
    ],
)
def test_columns_of_another_shape_are_refused_by_name(change, what):
    with pytest.raises(ColumnsError, match=what):
        cut_columns(change(table_of(spelled("a:1@1"))), BatchConfig(50, 20))


def test_the_faithful_mode_has_no_columns():
    with pytest.raises(ConfigError, match="batched only in mode order-free"):
        cut_columns(table_of([]), BatchConfig(50, 20, mode="faithful"))


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20), st.integers(1, 9)), max_size=120),
    st.booleans(),
    st.none() | st.builds(SizeLimits, st.integers(1, 8), st.integers(1, 40)),
)
def test_runs_that_are_one_batch_at_a_glance_are_one_by_the_rule(rows, midpoint, caps):
    """Multiplied by 57 all keys have the same bit, so that no run of several rows is found to be one batch by it."""
    key, step, size = np.array(rows, np.int64).reshape(-1, 3).T
    source, time = np.zeros(len(rows), np.int64), np.cumsum(step)
    order = np.lexsort((key, time))
    first = np.append(True, np.diff(time[order] * 100 + key[order]) > 0)[: len(rows)]
    kept = order[first]
    found = [
        find_window_boundaries(source[kept], code[kept], time[kept], 12, midpoint=midpoint, caps=caps, size=size[kept])
        for code in (key, key * 57)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


@given(st.lists(st.integers(0, 3), max_size=30), st.booleans())
def test_borders_do_not_depend_on_how_large_the_codes_of_keys_are(keys, midpoint):
    source, time = np.zeros(len(keys), np.int64), np.arange(len(keys), dtype=np.int64)
    small = np.array(keys, np.int64)
    borders = [find_window_boundaries(source, code, time, 12, midpoint=midpoint) for code in (small, small << 60)]
    assert all(np.array_equal(one, other) for one, other in zip(*borders, strict=True))
