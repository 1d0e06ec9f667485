"""Rules that change at a time: each period is batched as if only its records and its rules existed."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, ConfigError, Event, Override, Rulebook, SnapshotError
from millstream.batching.adaptive import AdaptiveBatcher
from millstream.batching.column_batcher import ColumnBatcher
from millstream.batching.snapshot_split import join_snapshots, split_snapshot
from millstream.testing.batching_oracle import plain_batches
from support.closed_tables import in_order, named, table_of

END = 400
"""A clock at which no record of the tests is waited for any more."""

CONFIGS = st.builds(
    BatchConfig,
    st.integers(0, 30),
    st.integers(0, 20),
    st.none() | st.integers(0, 30),
    max_count=st.none() | st.integers(1, 4),
) | st.builds(
    BatchConfig, st.integers(0, 20), st.integers(0, 10), late=st.sampled_from(["side", "amend"]), grace=st.just(25)
)


@st.composite
def histories(draw):
    """A rulebook as it was after each of its changes, the first without any."""
    books = [draw(_books())]
    decided = since = 0
    for _ in range(draw(st.integers(1, 3))):
        decided = draw(st.integers(decided, decided + 40))
        earliest = max(since, decided + books[-1].current.lead) + 1
        since = draw(st.integers(earliest, earliest + 20))
        books.append(books[-1].changed(since, decided, draw(_books())))
    return books


@st.composite
def _books(draw):
    overrides = [Override(draw(CONFIGS), source="q")] if draw(st.booleans()) else []
    return Rulebook(draw(CONFIGS), tuple(overrides))


RECORDS = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from("abc"), st.integers(0, 140), st.integers(-25, 25)), max_size=40
).map(
    lambda rows: sorted(
        (Event(n, source, key, max(0, t - delay), t) for n, (source, key, t, delay) in enumerate(rows)),
        key=lambda event: event.received_at,
    )
)


def expected(rules, records):
    """The batches and rejects of the oracle: the records of each period and each set of rules are batched alone."""
    batches, rejects, left = [], [], list(records)
    for change, period in zip((*reversed(rules.later), None), reversed(rules.periods), strict=True):
        mine = [e for e in left if change is None or (e.event_time >= change.since and e.received_at > change.decided)]
        left = [event for event in left if event not in mine]
        for config, group in itertools.groupby(
            sorted(mine, key=lambda e: e.source), key=lambda e: period.chooser()(e.source, e.key)
        ):
            found = plain_batches(list(group), config, END)
            batches += found[0]
            rejects += found[1]
    return in_order(batches, rejects)


class _Host:
    """A batcher of one kind that is restarted from its snapshot before each step."""

    def __init__(self, make):
        self._make, self._snapshot = make, None
        self.batches, self.rejects = [], []

    def step(self, rules, events, bound):
        batcher = self._make(rules, self._snapshot)
        batches, rejects = named(batcher.step(table_of(events), bound))
        self.batches += batches
        self.rejects += rejects
        self._snapshot = batcher.snapshot()


def with_edges(rules, records):
    """*records*, and some just before and just at each change, one of them received before it was decided."""
    times = [
        times
        for change in rules.later
        for times in [(change.since - 1, change.since), (change.since,) * 2, (change.since, change.decided)]
    ]
    edges = [Event(1000 + n, "p", "abc"[n % 3], *pair) for n, pair in enumerate(times)]
    return sorted([*records, *edges], key=lambda event: event.received_at)


def serve(books, records, sizes, make):
    """The output for *records*, fed in steps of *sizes*, under rules that change as soon as the clock has to know."""
    host, turn, waiting = _Host(make), itertools.cycle(sizes), list(records)
    for book, following in itertools.zip_longest(books, books[1:]):
        decided = END if following is None else following.later[-1].decided
        while waiting and waiting[0].received_at <= decided:
            size = next(turn)
            step = [event for event in waiting[:size] if event.received_at <= decided]
            waiting = waiting[len(step) :]
            host.step(book, step, step[-1].received_at)
    host.step(books[-1], [], END)
    return in_order(host.batches, host.rejects)


@settings(max_examples=200, deadline=None)
@given(histories(), RECORDS, st.lists(st.integers(1, 30), min_size=1, max_size=4), st.booleans())
def test_p5_each_period_is_batched_alone_whatever_the_steps_and_restarts(books, records, sizes, in_columns):
    make, records = ColumnBatcher if in_columns else AdaptiveBatcher, with_edges(books[-1], records)
    assert serve(books, records, sizes, make) == expected(books[-1], records)


@settings(max_examples=100, deadline=None)
@given(histories(), RECORDS, st.randoms(use_true_random=False))
def test_p5_the_recorded_rules_alone_give_the_batches_again_in_any_order(books, records, draw):
    records = with_edges(books[-1], records)
    batcher, shuffled = Batcher.of(books[-1]), list(records)
    draw.shuffle(shuffled)
    outcomes = [batcher.receive_many(shuffled), batcher.advance(END)]
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    rejects = [reject for outcome in outcomes for reject in outcome.rejects]
    assert in_order(batches, rejects) == expected(books[-1], records)
    assert named(ColumnBatcher(books[-1]).step(table_of(shuffled), END)) == expected(books[-1], records)


@settings(max_examples=50, deadline=None)
@given(histories(), RECORDS)
def test_a_snapshot_is_split_among_shards_before_the_rules_change(books, records):
    *before, last = books
    decided = last.later[-1].decided
    early = [event for event in records if event.received_at <= decided]
    whole, parts = Batcher.of(before[-1]), []
    found = [whole.receive_many(early), whole.advance(decided)]
    for number, part in enumerate(split_snapshot(whole.snapshot(), lambda source: source == "q", 2)):
        batcher = ColumnBatcher(last, part)
        later = [event for event in records if event not in early and (event.source == "q") == number]
        found.append(named(batcher.step(table_of(later), END - 1)))
        parts.append(batcher.snapshot())
    found.append(named(ColumnBatcher(last, join_snapshots(parts)).step(table_of([]), END)))
    batches, rejects = (list(itertools.chain.from_iterable(items)) for items in zip(*found, strict=True))
    assert in_order(batches, rejects) == expected(last, records)


OLD, NEW = Rulebook(BatchConfig(50, 20)), Rulebook(BatchConfig(10, 5))


def test_rules_that_never_changed_are_encoded_as_before():
    assert msgspec.json.encode(OLD).endswith(b'"overrides":[]}')
    assert "changes" not in OLD.plain


def test_a_snapshot_under_changed_rules_has_a_version_that_earlier_releases_refuse():
    assert [Batcher.of(rules).snapshot()[4] for rules in (OLD, OLD.changed(121, 100, NEW))] == [2, 4]
    assert ColumnBatcher(OLD).snapshot()[4] == 3


def test_changed_rules_survive_their_encodings():
    rules = OLD.changed(121, 100, NEW).changed(200, 150, OLD)
    assert msgspec.json.decode(msgspec.json.encode(rules), type=Rulebook) == rules
    assert [change["since"] for change in rules.plain["changes"]] == [121, 200]


@pytest.mark.parametrize(
    ("since", "decided", "what"),
    [(120, 100, "records up to .*00.000120Z may be in a batch already"), (150, 130, "already change at .*00.000150Z"),
     (180, 90, "already change at .*00.000150Z")],
)  # fmt: skip
def test_a_change_of_records_that_may_have_been_batched_is_refused(since, decided, what):
    rules = OLD if since == 120 else OLD.changed(150, 100, NEW)
    with pytest.raises(ConfigError, match=what):
        rules.changed(since, decided, OLD)


def test_rules_of_the_mode_faithful_do_not_change():
    with pytest.raises(ConfigError, match="mode faithful cannot change"):
        Rulebook(BatchConfig(50, 20, mode="faithful")).changed(200, 100, NEW)


def test_rules_count_for_the_patience_as_long_as_batches_can_be_open_by_them():
    rules = NEW.changed(200, 100, OLD).changed(300, 200, NEW)
    assert [NEW.patience, OLD.patience] == [16, 71]
    assert [rules.patience_at(clock) for clock in (None, 250, 371, 372)] == [71, 71, 71, 16]


@pytest.mark.parametrize("restore", [Batcher.restore, lambda data, rules: ColumnBatcher(rules, data)])
def test_a_snapshot_continues_only_under_its_rules_and_later_changes(restore):
    batcher = Batcher.of(OLD)
    batcher.advance(100)
    data = batcher.snapshot()
    restore(data, OLD.changed(121, 100, NEW))
    with pytest.raises(SnapshotError, match="taken with the rules"):
        restore(data, NEW)
    with pytest.raises(SnapshotError, match=r"taken at .*00\.000100Z, after the rules were changed at .*00\.000099Z"):
        restore(data, OLD.changed(121, 99, NEW))
    changed = Batcher.restore(data, OLD.changed(121, 100, NEW)).snapshot()
    with pytest.raises(SnapshotError, match="taken with the rules"):
        restore(changed, OLD)
