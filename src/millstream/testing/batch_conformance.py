"""What a host of the batcher must hold to, as properties over many thousand random cases (reference "batching", §7).

Inherit the class in a test module and give your class the fixture ``engine``, a function that batches many cases at
once::

    class TestMyHost(BatchConformance):
        @pytest.fixture
        def engine(self):
            return lambda config, cases, draw: [run(config, events) for events in cases]

A *case* is one list of events under one set of rules. Hypothesis draws the rules and a seed; of that seed come
:data:`TOGETHER` cases, so that a host may take them in one go: no two of them share a source or an id. A case that
fails is made smaller before it is shown.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Event, EventBatch, Reject
from millstream.testing.batch_cases import (
    apart,
    by_id,
    by_start,
    delayed,
    draw_case,
    moved,
    punctual,
    rules,
    saying_one_thing,
)
from millstream.testing.batching_oracle import plain_batches

TOGETHER = 40
"""Cases of one example."""


class EngineResult(NamedTuple):
    """What came of a case, in any order, and the last clock that the host was advanced to before the end (or None)."""

    batches: Sequence[EventBatch]
    rejects: Sequence[Reject]
    clock: int | None = None


Engine = Callable[[BatchConfig, Sequence[list[Event]], random.Random], Sequence[EngineResult]]
"""Batches cases under some rules, each to its end."""

Check = Callable[[BatchConfig, list[Event], EngineResult], None]
"""Looks at what came of one case."""

Pair = Callable[[EngineResult, EngineResult], None]
"""Compares what came of a case with what came of a variant of it."""

Variant = Callable[[BatchConfig, list[Event], random.Random], list[Event]]
"""The same case, somewhat different."""


class BatchConformance:
    """The properties P1 to P11. Needs the fixture ``engine``."""

    cases: ClassVar[int] = 10_000
    """How many cases each property is tried on."""

    late: ClassVar[bool] = True
    """Whether the engine knows policies for late records."""

    @pytest.fixture
    def engine(self) -> Engine:
        """Batches cases."""
        raise LookupError("a conformance test requires the fixture engine: define it in your test class")

    def test_p5_arrival_no_delay_within_the_limit_changes_a_batch(self, engine: Engine) -> None:
        """P1: the same events with other delays, none too long, give the same batches."""
        self._compare(engine, delayed, _same_identities, prepare=saying_one_thing)

    def test_p5_chunks_ticks_and_restarts_give_what_the_plain_rule_gives(self, engine: Engine) -> None:
        """P2, P3 and P4, and the rule itself: what comes out is what sorting gives, and the times of closing."""
        self._check(engine, _check_plain)

    def test_p5_conservation_every_record_is_in_one_standing_batch_or_refused_once(self, engine: Engine) -> None:
        """P5, and that reasons are true."""
        self._check(engine, _check_conservation)

    def test_p5_shape_batches_fit_window_and_caps_with_one_record_a_key_and_do_not_overlap(
        self, engine: Engine
    ) -> None:
        """P6."""
        self._check(engine, _check_shape)

    def test_p5_latency_a_batch_is_closed_no_later_than_its_end_allows(self, engine: Engine) -> None:
        """P7: by the window's end, one tick and the longest delay at the latest, and not after the clock."""
        self._check(engine, _check_latency)

    def test_p5_resync_cutting_the_input_at_a_gap_wider_than_the_window_changes_nothing(self, engine: Engine) -> None:
        """P8."""
        self._compare(engine, lambda config, events, _: apart(config, events), _same_members, late=False)

    def test_p5_no_clock_but_that_of_the_records_is_known(self, engine: Engine) -> None:
        """P9: where all times are moved alike, all batches are moved alike."""
        for by in (-(2**52), 7, 2**52):
            cases = self.cases // 3 + TOGETHER
            self._compare(engine, lambda _, events, __, by=by: moved(events, by), _same_outcome, cases=cases)  # type: ignore[misc]

    def test_p5_raising_the_delay_changes_no_batch_when_nothing_was_late(self, engine: Engine) -> None:
        """P10."""

        def patient(config: BatchConfig) -> BatchConfig:
            return msgspec.structs.replace(config, max_delay=config.max_delay + 1 + config.window)

        self._compare(
            engine, lambda _, events, __: events, _same_members, prepare=punctual, late=False, other_rules=patient
        )

    def test_p5_maximality_no_batch_could_take_the_first_instant_of_the_next(self, engine: Engine) -> None:
        """P11, where conflicts cut at the event."""
        self._check(engine, _check_maximality, rules(late=False, cuts=("at_event",)))

    def _check(self, engine: Engine, check: Check, configs: st.SearchStrategy[BatchConfig] | None = None) -> None:
        """Put :attr:`cases` cases through *engine* and *check*."""

        def look(config: BatchConfig, cases: Sequence[list[Event]], draw: random.Random) -> None:
            for events, result in zip(cases, engine(config, cases, draw), strict=True):
                with _case(config, events):
                    check(config, events, result)

        _many(look, rules(late=self.late) if configs is None else configs, self.cases)

    def _compare(
        self,
        engine: Engine,
        variant: Variant,
        same: Pair,
        *,
        prepare: Callable[[BatchConfig, list[Event]], list[Event]] = lambda _, events: events,
        late: bool = True,
        cases: int = 0,
        other_rules: Callable[[BatchConfig], BatchConfig] = lambda config: config,
    ) -> None:
        """Put cases, made what *prepare* makes of them, and variants of them through *engine*: they must be *same*."""

        def look(config: BatchConfig, cases: Sequence[list[Event]], draw: random.Random) -> None:
            ones = [prepare(config, events) for events in cases]
            others = [variant(config, events, draw) for events in ones]
            results = engine(config, ones, draw), engine(other_rules(config), others, draw)
            for events, one, other in zip(ones, *results, strict=True):
                with _case(config, events):
                    same(one, other)

        _many(look, rules(late=late and self.late), cases or self.cases)


Look = Callable[[BatchConfig, Sequence[list[Event]], random.Random], None]
"""Looks at cases under some rules."""


def _many(look: Look, configs: st.SearchStrategy[BatchConfig], wanted: int) -> None:
    """Let *look* look at *wanted* cases. Where it fails, it fails for the smallest part of the case that does."""
    tried = 0

    @settings(max_examples=-(-wanted // TOGETHER), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    @given(configs, st.integers(0, 2**40))
    def examples(config: BatchConfig, seed: int) -> None:
        nonlocal tried
        draw = random.Random(seed)
        try:
            look(config, [draw_case(number, config, draw) for number in range(TOGETHER)], draw)
        except CaseFailedError as failed:
            raise _smallest(look, config, failed) from failed
        tried += TOGETHER

    examples()
    assert tried >= wanted


class CaseFailedError(AssertionError):
    """A case failed: its rules and its events."""

    def __init__(self, config: BatchConfig, events: list[Event]) -> None:
        super().__init__(f"under {config.rules_text!r} fails the case\n{events}")
        self.events = events


@contextlib.contextmanager
def _case(config: BatchConfig, events: list[Event]) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise CaseFailedError(config, events) from error


def _smallest(look: Look, config: BatchConfig, failed: CaseFailedError) -> CaseFailedError:
    """The failure of the smallest part of a case that failed: one from which nothing can be left away."""
    for event in failed.events:
        try:
            look(config, [[other for other in failed.events if other is not event]], random.Random(0))
        except CaseFailedError as error:
            return _smallest(look, config, error)
    return failed


def _same_identities(one: EngineResult, other: EngineResult) -> None:
    first, second = by_start(one.batches), by_start(other.batches)
    assert sorted(batch.batch for batch in first) == sorted(batch.batch for batch in second)
    assert sorted(reject.reason for reject in one.rejects) == sorted(reject.reason for reject in other.rejects)


def _same_members(one: EngineResult, other: EngineResult) -> None:
    assert sorted(batch.events for batch in one.batches) == sorted(batch.events for batch in other.batches)


def _same_outcome(one: EngineResult, other: EngineResult) -> None:
    firsts = [{(batch.events, batch.kind) for batch in result.batches} for result in (one, other)]
    assert firsts[0] == firsts[1]
    assert {batch.end - batch.start for batch in one.batches} == {batch.end - batch.start for batch in other.batches}
    assert by_id(one.rejects) == by_id(other.rejects)


def _check_plain(config: BatchConfig, events: list[Event], given: EngineResult) -> None:
    batches, rejects = plain_batches(events, config, given.clock)
    assert by_start(given.batches) == by_start(batches)
    assert by_id(given.rejects) == rejects


def _check_conservation(config: BatchConfig, events: list[Event], given: EngineResult) -> None:
    replaced = {name for batch in given.batches for name in batch.amends}
    standing = [number for batch in given.batches if batch.batch not in replaced for number in batch.events]
    refused = [reject.rejected for reject in given.rejects]
    assert sorted(standing + refused) == sorted(event.id for event in events)
    assert len({batch.batch for batch in given.batches}) == len(given.batches)
    delays = {event.id: event.received_at - event.event_time for event in events}
    for reject in given.rejects:
        assert (reject.reason == "late") == (delays[reject.rejected] > config.patient.max_delay)
        assert (reject.reason == "future") == (-delays[reject.rejected] > config.lead)


def _check_shape(config: BatchConfig, events: list[Event], given: EngineResult) -> None:
    known = {event.id: event for event in events}
    for batch in given.batches:
        members = [known[number] for number in batch.events]
        spots = [(event.event_time, event.key) for event in members]
        assert {event.source for event in members} == {batch.source}
        assert (batch.start, batch.end) == (spots[0][0], spots[-1][0])
        assert batch.end <= batch.start + config.window
        assert len({event.key for event in members}) == len(members)
        assert spots == sorted(spots)
        assert len(members) == 1 or not _exceeds(config, members)
    replaced = {name for batch in given.batches for name in batch.amends}
    _check_disjoint(config, [batch for batch in given.batches if batch.kind == "batch"], known)
    _check_disjoint(config, [batch for batch in given.batches if batch.kind == "side"], known)
    if config.policy == "amend":
        _check_disjoint(config, [batch for batch in given.batches if batch.batch not in replaced], known)


def _check_disjoint(config: BatchConfig, batches: list[EventBatch], known: dict[int, Event]) -> None:
    """Batches of a source follow one another; two share a time only where the caps split that instant.

    The cut of the first is ``size`` then, unless it came out before the late record that made the instant too large.
    """
    for earlier, later in itertools.pairwise(by_start(batches)):
        if earlier.source != later.source or earlier.end < later.start:
            continue
        assert earlier.end == later.start
        assert earlier.cut == "size" or "amendment" in (earlier.kind, later.kind)
        torn = [known[n] for batch in batches if batch.source == later.source for n in batch.events]
        assert _exceeds(config, [event for event in torn if event.event_time == later.start])


def _check_latency(config: BatchConfig, _: list[Event], given: EngineResult) -> None:
    for batch in given.batches:
        rule = config.punctual if batch.kind == "batch" else config.patient
        latest = batch.start + rule.window + 1 + rule.max_delay
        if batch.closed_at is None:
            assert given.clock is None or given.clock < latest
        else:
            assert batch.end + rule.max_delay < batch.closed_at <= latest
            assert given.clock is not None
            assert batch.closed_at <= given.clock


def _check_maximality(config: BatchConfig, events: list[Event], given: EngineResult) -> None:
    known = {event.id: event for event in events}
    batches = by_start(given.batches)
    for earlier, later in itertools.pairwise(batches):
        if earlier.source != later.source or later.start > earlier.start + config.window:
            continue
        members = [known[number] for number in earlier.events]
        follows = [known[n] for batch in batches if batch.source == later.source for n in batch.events]
        instant = [event for event in follows if event.event_time == later.start]
        assert {e.key for e in members} & {e.key for e in instant} or _exceeds(config, [*members, *instant])


def _exceeds(config: BatchConfig, events: list[Event]) -> bool:
    """Whether *events* are more than one batch may hold."""
    caps = config.caps
    return caps is not None and (len(events) > caps.count or sum(event.size for event in events) > caps.size)
