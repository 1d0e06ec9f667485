"""The figures of rules that are tried are those that a batcher gives under them."""

from __future__ import annotations

import math

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, Event
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.simulation import SimulationMetrics, recommend, simulate, total

configs = st.one_of(
    st.builds(
        BatchConfig,
        window=st.integers(0, 40),
        max_delay=st.integers(0, 25),
        conflict_cut=st.sampled_from(["at_event", "midpoint"]),
        max_count=st.none() | st.integers(1, 6),
    ),
    st.sampled_from(["side", "amend"]).map(lambda late: BatchConfig(20, 10, late=late, grace=25)),
)
records = st.lists(
    st.tuples(
        st.sampled_from(("", "b")),
        st.sampled_from("abc"),
        st.integers(0, 120),
        st.integers(-12, 45),
        st.sampled_from("xy"),
    ),
    max_size=60,
)


def events_of(rows: list[tuple[str, str, int, int, str]]) -> list[Event]:
    return [
        Event(n, source, key, time, time + delay, digest) for n, (source, key, time, delay, digest) in enumerate(rows)
    ]


def table_of(events: list[Event]) -> pa.Table:
    return pa.table({name: [getattr(event, name) for event in events] for name in EVENT_SCHEMA.names}, EVENT_SCHEMA)


@given(configs, records)
def test_figures_are_those_of_the_batcher(config: BatchConfig, rows: list[tuple[str, str, int, int, str]]) -> None:
    events, batcher = events_of(rows), Batcher.of(config)
    outcomes = [batcher.receive_many(events), batcher.advance(100_000)]
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    reasons = [reject.reason for outcome in outcomes for reject in outcome.rejects]
    figures = simulate(table_of(events), config)
    assert figures.records == len(events)
    assert (figures.groups, figures.late_groups) == (len(batches), sum(batch.kind != "batch" for batch in batches))
    assert figures.singles == sum(len(batch.events) == 1 for batch in batches)
    assert (figures.late, figures.future) == (reasons.count("late"), reasons.count("future"))
    assert figures.copies == sum(reason.endswith("duplicate") for reason in reasons)
    assert figures.waited == sum((batch.closed_at or 0) - batch.start for batch in batches)
    late = sum(event.event_time < event.received_at - config.max_delay for event in events)
    assert figures.late + figures.accepted_late == late


@given(records, st.floats(0.01, 1))
def test_a_latency_quantile_is_at_most_a_step_too_high(
    rows: list[tuple[str, str, int, int, str]], share: float
) -> None:
    config, batcher = BatchConfig(30, 20), Batcher(30, 20)
    batches = [*batcher.receive_many(events_of(rows)).batches, *batcher.advance(100_000).batches]
    waits = sorted((batch.closed_at or 0) - batch.start for batch in batches)
    figures = simulate(table_of(events_of(rows)), config)
    if not waits:
        assert figures.latency_quantile(share) == 0
        return
    exact = waits[math.ceil(share * len(waits)) - 1]
    assert exact <= figures.latency_quantile(share) <= exact * 1.1 + 1


@given(configs, records)
def test_sources_can_be_tried_apart_and_added_up(
    config: BatchConfig, rows: list[tuple[str, str, int, int, str]]
) -> None:
    events = events_of(rows)
    parts = [[event for event in events if event.source == source] for source in ("", "b")]
    assert total([simulate(table_of(part), config) for part in parts]) == simulate(table_of(events), config)


def figures(late: int, singles: int, latency: int, **changes: int) -> SimulationMetrics:
    known = SimulationMetrics(10, 10, "reject", 0, 1000, 1000, 0, singles, late, 0, 0, 0, latency * 1000, (0, 1000))
    return msgspec.structs.replace(known, **changes)


@pytest.mark.parametrize(
    ("choices", "best"),
    [
        ([figures(5, 10, 9), figures(50, 10, 1)], 0),
        ([figures(5, 10, 9), figures(6, 14, 3), figures(1, 40, 1)], 1),
        ([figures(90, 10, 1), figures(40, 50, 9)], 1),
        ([figures(0, 10, 5, window=20), figures(0, 10, 5, window=5)], 1),
    ],
    ids=["few late", "few singles, then latency", "none is good enough", "the smaller window"],
)
def test_the_advice_follows_its_rules(choices: list[SimulationMetrics], best: int) -> None:
    assert recommend(choices, 0.01) == choices[best]


def test_no_records_have_figures_too() -> None:
    nothing = simulate(EVENT_SCHEMA.empty_table(), BatchConfig(50, 20))
    assert (nothing.groups, nothing.late_share, nothing.single_share, nothing.latency) == (0, 0.0, 0.0, 0.0)
