"""Determinism as properties (reference "batching" §7, P1 to P11), each against the oracle in plain words."""

from __future__ import annotations

import ast
import itertools
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream.batching
from millstream.batching import BatchConfig, Batcher, Event
from millstream.testing.batching import plain_batches

LONG = os.environ.get("MILLSTREAM_TEST_SIZE") == "long"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600 if LONG else 300)]
many = settings(max_examples=10_000 if LONG else 500, deadline=None)

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
at_event_configs = st.builds(
    BatchConfig,
    window=st.integers(0, 40),
    max_delay=st.integers(0, 25),
    max_count=st.none() | st.integers(1, 6),
    max_bytes=st.none() | st.integers(1, 30),
)


def size_of(key, time, digest):
    """Equal records have equal sizes; some are larger than the cap."""
    return (ord(key) * 7 + time * 5 + len(digest) * 3) % 37 // 3


def exceeds(config, events):
    """Whether *events* are more than one batch may hold."""
    caps = config.caps
    return caps is not None and (len(events) > caps.count or sum(event.size for event in events) > caps.size)


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


def in_pieces(config, events, data, *, restarts=False):
    """Like :func:`at_once`, in any order, in calls of any size, with as many true ticks in between as are drawn.

    Returns the sequences in which they came, and the last clock.
    """
    batcher = Batcher.of(config)
    batches, rejects, clock = [], [], None
    waiting = list(data.draw(st.permutations(events)))
    while waiting:
        size = data.draw(st.integers(1, 8))
        chunk, waiting = waiting[:size], waiting[size:]
        outcomes = [batcher.receive_many(chunk)]
        safe = min((event.received_at for event in waiting), default=2 * SPAN)
        if data.draw(st.booleans()):
            clock = safe - data.draw(st.integers(0, 5))
            outcomes.append(batcher.advance(clock))
        if restarts and data.draw(st.booleans()):
            batcher = Batcher.restore(batcher.snapshot())
        for outcome in outcomes:
            batches += outcome.batches
            rejects += outcome.rejects
    clock = batcher.clock
    last = batcher.flush()
    return batches + last.batches, rejects + last.rejects, clock


@many
@given(scenarios())
@example((BatchConfig(10, 5, conflict_cut="midpoint"), [Event(1, "", "a", 0, 0), Event(2, "", "a", 1, 1)]))
def test_the_batcher_gives_what_the_plain_rule_gives(scenario):
    config, events = scenario
    assert at_once(config, events) == plain_batches(events, config)
    clock = max((event.received_at for event in events), default=0)
    assert at_once(config, events, clock) == plain_batches(events, config, clock)


@many
@given(scenarios(digests=("",)), st.data())
def test_p5_arrival_no_delay_within_the_limit_changes_a_batch(scenario, data):
    config, events = scenario
    delays = data.draw(
        st.lists(st.integers(-config.lead, config.max_delay), min_size=len(events), max_size=len(events))
    )
    prompt = [Event(e.id, e.source, e.key, e.event_time, e.event_time, "", e.size) for e in events]
    delayed = [
        Event(e.id, e.source, e.key, e.event_time, e.event_time + delay, "", e.size)
        for e, delay in zip(events, delays, strict=True)
    ]
    first = [(batch.batch, batch.cut) for batch in at_once(config, prompt)[0]]
    second = [(batch.batch, batch.cut) for batch in at_once(config, data.draw(st.permutations(delayed)))[0]]
    assert first == second


@many
@given(scenarios(), st.data())
def test_p5_chunking_and_ticks_change_nothing(scenario, data):
    config, events = scenario
    batches, rejects, clock = in_pieces(config, events, data)
    expected, refused = plain_batches(events, config, clock)
    assert by_id(rejects) == refused
    for source in ("", "b"):
        ours = [batch for batch in batches if batch.source == source]
        assert ours == [batch for batch in expected if batch.source == source]


@many
@given(scenarios(), st.data())
def test_p5_restart_between_any_two_calls_changes_nothing(scenario, data):
    config, events = scenario
    batches, rejects, clock = in_pieces(config, events, data, restarts=True)
    assert (by_start(batches), by_id(rejects)) == plain_batches(events, config, clock)


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
@given(scenarios(), st.data())
def test_p5_determinism_conserves_every_record_exactly_once(scenario, data):
    config, events = scenario
    batches, rejects, _ = in_pieces(config, events, data)
    ended = [number for batch in batches for number in batch.events] + [reject.rejected for reject in rejects]
    assert sorted(ended) == [event.id for event in events]


@many
@given(scenarios())
def test_p5_shape_batches_fit_window_and_caps_with_one_record_a_key_and_do_not_overlap(scenario):
    config, events = scenario
    known = {event.id: event for event in events}
    batches = at_once(config, events)[0]
    for batch in batches:
        members = [known[number] for number in batch.events]
        assert members
        assert {event.source for event in members} == {batch.source}
        assert batch.start == members[0].event_time
        assert batch.end == members[-1].event_time <= batch.start + config.window
        assert len({event.key for event in members}) == len(members)
        assert [(e.event_time, e.key) for e in members] == sorted((e.event_time, e.key) for e in members)
        if config.caps is not None:
            assert len(members) <= config.caps.count
            assert len(members) == 1 or sum(event.size for event in members) <= config.caps.size
    for earlier, later in itertools.pairwise(batches):
        if earlier.source == later.source and earlier.end == later.start:
            assert earlier.cut == "size"
            torn = [known[n] for b in batches if b.source == later.source for n in b.events]
            assert exceeds(config, [event for event in torn if event.event_time == later.start])
        else:
            assert earlier.source < later.source or earlier.end < later.start


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


@many
@given(scenarios())
def test_p5_resync_cutting_the_input_at_a_gap_wider_than_the_window_changes_nothing(scenario):
    config, events = scenario
    whole = [batch.batch for batch in at_once(config, events)[0]]
    taken = [e for e in events if -config.lead <= e.received_at - e.event_time <= config.max_delay]
    parts = []
    for source in sorted({event.source for event in taken}):
        mine = sorted((event for event in taken if event.source == source), key=lambda event: event.event_time)
        part = []
        for event in mine:
            if part and event.event_time - part[-1].event_time > config.window:
                parts.append(part)
                part = []
            part.append(event)
        parts.append(part)
    assert [batch.batch for part in parts for batch in at_once(config, part)[0]] == whole


def test_p5_no_wall_clock_or_chance_is_known_to_the_core():
    for path in Path(millstream.batching.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"time", "datetime", "random", "secrets", "uuid", "os"}


@many
@given(scenarios(), st.integers(0, 50))
def test_p5_raising_the_delay_changes_no_batch_when_nothing_was_late(scenario, more):
    config, events = scenario
    punctual = [e for e in events if -config.lead <= e.received_at - e.event_time <= config.max_delay]
    patient = msgspec.structs.replace(config, max_delay=config.max_delay + more)
    first, second = at_once(config, punctual)[0], at_once(patient, punctual)[0]
    assert [batch.events for batch in first] == [batch.events for batch in second]


@many
@given(scenarios(at_event_configs))
def test_p5_maximality_no_batch_could_take_the_first_instant_of_the_next(scenario):
    config, events = scenario
    known = {event.id: event for event in events}
    batches = at_once(config, events)[0]
    for earlier, later in itertools.pairwise(batches):
        if earlier.source != later.source or later.start > earlier.start + config.window:
            continue
        keys = {known[number].key for number in earlier.events}
        instant = [known[n] for n in later.events if known[n].event_time == later.start]
        follows = [known[n] for b in batches if b.source == later.source for n in b.events]
        whole = [event for event in follows if event.event_time == later.start]
        members = [known[number] for number in earlier.events]
        assert keys & {event.key for event in instant} or exceeds(config, members + whole)


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
    "spots",
    [
        [("a", 0), ("b", 3), ("a", 6), ("b", 9)],
        [("a", 0), ("a", 4), ("b", 4), ("a", 7)],
        [("a", 1), ("b", 2), ("c", 3), ("a", 5)],
    ],
)
def test_p5_every_one_of_the_delay_assignments_of_four_events_has_one_outcome(spots, cut):
    outcomes = set()
    for delays in itertools.product(range(7), repeat=4):
        events = [
            Event(number, "", key, time, time + delay)
            for number, ((key, time), delay) in enumerate(zip(spots, delays, strict=True))
        ]
        batcher, ids = Batcher(8, 6, conflict_cut=cut), []
        for event in sorted(events, key=lambda event: event.received_at):
            ids += batcher.advance(event.received_at).batches
            ids += batcher.receive(event).batches
        outcomes.add(tuple(batch.batch for batch in ids + batcher.flush().batches))
    assert len(outcomes) == 1


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
