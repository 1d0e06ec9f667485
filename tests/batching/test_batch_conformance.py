"""Determinism as properties, P1 to P11 of reference "batching" §7, for every way in which this package batches."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pytest

from millstream.batching import BatchConfig, Batcher, adaptive
from millstream.batching.adaptive import AdaptiveBatcher
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.columns import cut_columns
from millstream.batching.event import EventBatch, Reject
from millstream.testing.batch_conformance import BatchConformance, CaseFailedError, EngineResult
from suite.sizes import sized

pytestmark = [pytest.mark.long, pytest.mark.timeout(sized(ci=300, long=3600))]


def in_pieces(config, events, draw):
    """A batcher that gets *events* in any order, in calls of any size, with ticks and restarts between them."""
    batcher, batches, rejects = Batcher.of(config), [], []
    waiting = draw.sample(events, len(events))
    while waiting:
        size = draw.randint(1, 8)
        chunk, waiting = waiting[:size], waiting[size:]
        outcomes = [batcher.receive_many(chunk)]
        if draw.random() < 0.6:
            safe = min((event.received_at for event in waiting), default=10 + max(e.received_at for e in chunk))
            outcomes.append(batcher.advance(safe - draw.randint(0, 3)))
        if draw.random() < 0.2:
            batcher = Batcher.restore(batcher.snapshot(), config)
        for outcome in outcomes:
            batches += outcome.batches
            rejects += outcome.rejects
    clock, last = batcher.clock, batcher.flush()
    return EngineResult(batches + last.batches, rejects + last.rejects, clock)


def table_of(events):
    return pa.table(
        [pa.array([getattr(e, field.name) for e in events], field.type) for field in EVENT_SCHEMA], EVENT_SCHEMA
    )


def case_of(source):
    return int(source.partition(".")[0])


def dealt(cases, batches, rejects, clock=None):
    """*batches* and *rejects* of all *cases*, case by case: a source and an id say of which one they are."""
    place = {events[0].id // 100: n for n, events in enumerate(cases) if events}
    found = [EngineResult([], [], clock) for _ in cases]
    for batch in batches:
        found[place[case_of(batch.source)]].batches.append(batch)
    for reject in rejects:
        found[place[reject.rejected // 100]].rejects.append(reject)
    return found


def cut_as(config, rules, table, kind, clock):
    """What the columns give by *rules*, under the names of *config*."""
    history = cut_columns(table, rules, clock)
    rejects = [Reject(*row.values()) for row in history.rejects.to_pylist()]
    return list(history._replace(config=config).named(kind)), rejects


def in_columns(config, cases, draw):
    """All cases as one history; policies for late records by what they come down to, two histories."""
    events = [event for case in cases for event in case]
    clock = draw.choice([None, draw.randint(-10, 100)])
    if config.policy == "reject":
        return dealt(cases, *cut_as(config, config, table_of(events), "batch", clock), clock)
    if config.policy == "side":
        late = [event for event in events if event.received_at - event.event_time > config.max_delay]
        others = [event for event in events if event not in late]
        batches, rejects = cut_as(config, config.punctual, table_of(others), "batch", clock)
        more, refused = cut_as(config, config.patient, table_of(late), "side", clock)
        return dealt(cases, batches + more, rejects + refused, clock)
    batches, _ = cut_as(config, config.punctual, table_of(events), "batch", clock)
    final, rejects = cut_as(config, config.patient, table_of(events), "amendment", clock)
    return dealt(cases, [*batches, *amendments(events, batches, final)], rejects, clock)


def amendments(events: list, batches: list[EventBatch], final: list[EventBatch]):
    """Those of *final* that did not come out before, with the names of the batches that they replace."""
    spot = {event.id: (event.source, event.event_time, event.key) for event in events}
    given = {spot[number]: batch.batch for batch in batches for number in batch.events}
    names = {batch.batch for batch in batches}
    for batch in final:
        if batch.batch not in names:
            old = dict.fromkeys(given[spot[n]] for n in batch.events if spot[n] in given)
            yield msgspec.structs.replace(batch, amends=tuple(old))


def step_by_step(config, cases, draw, host=ColumnBatcher):
    """All cases as one stream of tables, with restarts, through *host*."""
    waiting = [event for case in cases for event in case]
    draw.shuffle(waiting)
    batcher, closed = host(config), []
    while waiting:
        size = draw.randint(1, 200)
        chunk, waiting = waiting[:size], waiting[size:]
        safe = min((event.received_at for event in waiting), default=10 + max(e.received_at for e in chunk))
        closed.append(batcher.step(table_of(chunk), safe))
        if draw.random() < 0.3:
            batcher = host(config, batcher.snapshot())
    clock = batcher.clock
    closed.append(batcher.flush())
    batches = [
        msgspec.convert({**row, "events": tuple(row["events"])}, EventBatch)
        for part in closed
        for row in part.batches.to_pylist()
    ]
    rejects = [Reject(*row.values()) for part in closed for row in part.rejects.to_pylist()]
    return dealt(cases, batches, rejects, clock)


class TestBatcher(BatchConformance):
    cases = sized(ci=10_000, long=200_000)

    @pytest.fixture
    def engine(self):
        return lambda config, cases, draw: [in_pieces(config, events, draw) for events in cases]


class TestColumns(BatchConformance):
    cases = sized(ci=10_000, long=200_000)

    @pytest.fixture
    def engine(self):
        return in_columns


class TestColumnBatcher(BatchConformance):
    cases = sized(ci=1000, long=20_000)

    @pytest.fixture
    def engine(self):
        return step_by_step


class TestAdaptiveBatcher(BatchConformance):
    """With thresholds that let it change from columns to records and back in every example."""

    cases = sized(ci=1000, long=20_000)

    @pytest.fixture
    def engine(self, monkeypatch):
        monkeypatch.setattr(adaptive, "LARGE_STEP", 120)
        monkeypatch.setattr(adaptive, "SMALL_STEPS_BEFORE_SWITCH", 1)
        return lambda config, cases, draw: step_by_step(config, cases, draw, AdaptiveBatcher)


def test_a_case_that_fails_is_made_smaller():
    """A host that forgets what has the key ``d`` is shown with one such event."""

    class Forgetful(BatchConformance):
        cases = 400

    def engine(config: BatchConfig, cases, draw: random.Random):
        return [in_pieces(config, [event for event in events if event.key != "d"], draw) for events in cases]

    with pytest.raises(CaseFailedError) as failed:
        Forgetful().test_p5_conservation_every_record_is_in_one_standing_batch_or_refused_once(engine)
    assert [event.key for event in failed.value.events] == ["d"]
