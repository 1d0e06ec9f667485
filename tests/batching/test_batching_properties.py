"""Properties that look into the batcher call by call; those of all its hosts are in ``test_batch_conformance.py``."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import millstream.batching
from millstream.batching import BatchConfig, Batcher, Event
from millstream.testing.batching_oracle import plain_batches
from suite.sizes import examples, sized

pytestmark = [pytest.mark.long, pytest.mark.timeout(sized(ci=300, long=3600))]
many = examples(ci=150, long=10_000)

SPAN = 120

configs = st.builds(
    BatchConfig,
    window=st.integers(0, 40),
    max_delay=st.integers(0, 25),
    leap=st.none() | st.integers(0, 10),
    conflict_cut=st.sampled_from(["at_event", "midpoint"]),
    max_count=st.none() | st.integers(1, 6),
    max_bytes=st.none() | st.integers(1, 30),
)


def size_of(key, time, digest):
    """Equal records have equal sizes; some are larger than the cap."""
    return (ord(key) * 7 + time * 5 + len(digest) * 3) % 37 // 3


@st.composite
def some_events(draw, config, *, min_delay=-12, max_delay=30, digests=("", "x", "y"), span=SPAN, sources=("", "b")):
    """Events on few keys and close times, so that clashes, copies, late and future ones are common."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(sources),
                st.sampled_from("abcd"),
                st.integers(0, span),
                st.integers(min_delay, max_delay),
                st.sampled_from(digests),
            ),
            max_size=40,
        )
    )
    return [
        Event(number, source, key, time, time + delay, digest, size_of(key, time, digest))
        for number, (source, key, time, delay, digest) in enumerate(rows, start=1)
    ]


@st.composite
def scenarios(draw, which=configs, **kwargs):
    config = draw(which)
    return config, draw(some_events(config, **kwargs))


def by_start(batches):
    return sorted(batches, key=lambda batch: (batch.source, batch.start))  # of one instant: as they came


def by_id(rejects):
    return sorted(rejects, key=lambda reject: (reject.rejected, reject.reason))


def at_once(config, events, clock=None):
    """Batches and rejects of *events* given in one call, after one advance to *clock*."""
    batcher = Batcher.of(config)
    outcomes = [batcher.receive_many(events)]
    if clock is not None:
        outcomes.append(batcher.advance(clock))
    outcomes.append(batcher.flush())
    batches, rejects = zip(*outcomes, strict=True)
    return by_start(itertools.chain(*batches)), by_id(itertools.chain(*rejects))


@many
@given(scenarios())
@example((BatchConfig(10, 5, conflict_cut="midpoint"), [Event(1, "", "a", 0, 0), Event(2, "", "a", 1, 1)]))
def test_the_batcher_gives_what_the_plain_rule_gives(scenario):
    config, events = scenario
    assert at_once(config, events) == plain_batches(events, config)
    clock = max((event.received_at for event in events), default=0)
    assert at_once(config, events, clock) == plain_batches(events, config, clock)


@many
@given(scenarios())
def test_p5_a_stream_gives_what_a_batch_job_gives(scenario):
    config, events = scenario
    stream = sorted(events, key=lambda event: (event.received_at, event.id))
    batcher, emitted = Batcher.of(config), []
    for event in stream:
        emitted += batcher.advance(event.received_at).batches
        emitted += batcher.receive(event).batches
    emitted += batcher.flush().batches
    job = at_once(config, events)[0]
    assert [batch.batch for batch in by_start(emitted)] == [batch.batch for batch in job]


@many
@given(scenarios(span=40))
def test_p5_latency_a_batch_comes_on_the_very_tick_it_names_and_no_later_than_its_end(scenario):
    config, events = scenario
    batcher = Batcher.of(config)
    for tick in range(-20, 160):
        due = [event for event in events if event.received_at == tick]
        outcomes = [batcher.advance(tick), *map(batcher.receive, due)]
        for batch in itertools.chain.from_iterable(outcome.batches for outcome in outcomes):
            assert batch.closed_at == tick
            assert tick <= batch.start + config.window + 1 + config.max_delay


def test_p5_no_wall_clock_or_chance_is_known_to_the_core():
    for path in Path(millstream.batching.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"time", "datetime", "random", "secrets", "uuid", "os"}


@many
@given(scenarios(st.builds(BatchConfig, st.integers(0, 40), st.integers(0, 25), conflict_cut=st.just("midpoint"))))
def test_p5_a_midpoint_cut_parts_a_clashing_pair_at_its_middle(scenario):
    config, events = scenario
    known = {event.id: event for event in events}
    batches = at_once(config, events)[0]
    for position, (earlier, later) in enumerate(itertools.pairwise(batches), start=1):
        if earlier.cut != "conflict":
            continue
        times = {known[number].key: known[number].event_time for number in earlier.events}
        following = [known[n] for batch in batches[position:] if batch.source == earlier.source for n in batch.events]
        pairs = [(times[event.key], event.event_time) for event in following if event.key in times]
        assert any(earlier.end * 2 < first + second <= later.start * 2 for first, second in pairs)


@pytest.mark.parametrize("cut", ["at_event", "midpoint"])
@pytest.mark.parametrize(
    ("spots", "of_the_code"),
    [
        ([("a", 0), ("b", 3), ("a", 6), ("b", 9)], 3),
        ([("a", 0), ("a", 4), ("b", 4), ("a", 7)], 1),
        ([("a", 1), ("b", 2), ("c", 3), ("a", 5)], 6),
    ],
)
def test_p5_every_one_of_the_delay_assignments_of_four_events_has_one_outcome(spots, of_the_code, cut):
    outcomes, in_the_code = set(), set()
    for delays in itertools.product(range(7), repeat=4):
        events = [
            Event(number, "", key, time, time + delay)
            for number, ((key, time), delay) in enumerate(zip(spots, delays, strict=True))
        ]
        stream = sorted(events, key=lambda event: event.received_at)
        outcomes.add(tuple(batch.batch for batch in one_by_one(Batcher(8, 6, conflict_cut=cut), stream)))
        faithful = one_by_one(Batcher(8, 6, mode="faithful"), stream)
        in_the_code.add(tuple(sorted(batch.events for batch in faithful)))
    assert (len(outcomes), len(in_the_code)) == (1, of_the_code)


def one_by_one(batcher, stream):
    batches = []
    for event in stream:
        batches += batcher.advance(event.received_at).batches
        batches += batcher.receive(event).batches
    return batches + batcher.flush().batches


@many
@given(scenarios(), st.data())
def test_faithful_conserves_every_record_fits_the_window_and_survives_restarts(scenario, data):
    rules, events = scenario
    config = BatchConfig(rules.window, rules.max_delay, rules.lead, mode="faithful")
    stream = sorted(events, key=lambda event: event.received_at)
    whole = Batcher.of(config)
    expected = [whole.receive_many(stream), whole.flush()]
    batcher, outcomes = Batcher.of(config), []
    for event in stream:
        if data.draw(st.booleans()):
            batcher = Batcher.restore(batcher.snapshot())
        outcomes.append(batcher.receive(event))
    outcomes.append(batcher.flush())
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    rejects = [reject for outcome in outcomes for reject in outcome.rejects]
    assert batches == [batch for outcome in expected for batch in outcome.batches]
    assert sorted([n for b in batches for n in b.events] + [r.rejected for r in rejects]) == [e.id for e in events]
    assert all(batch.events and batch.end - batch.start <= config.window for batch in batches)
