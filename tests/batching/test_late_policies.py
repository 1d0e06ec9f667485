"""Late records: refused, batched apart, or amending what came out without them; as deterministic as all the rest."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, BoundBrokenError, ConfigError, Event, Reject
from millstream.batching.columns import cut_columns
from millstream.testing.batching_oracle import plain_batches, spelled
from suite.sizes import examples, sized

pytestmark = [pytest.mark.long, pytest.mark.timeout(sized(ci=300, long=3600))]
many = examples(ci=100, long=10_000)

SPAN = 100


@st.composite
def late_configs(draw):
    window, policy = draw(st.integers(0, 20)), draw(st.sampled_from(["side", "amend"]))
    return BatchConfig(
        window,
        draw(st.integers(0, 12)),
        conflict_cut=draw(st.sampled_from(["at_event", "midpoint"])),
        max_count=draw(st.none() | st.integers(1, 5)),
        late=policy,
        grace=draw(st.integers(window if policy == "amend" else 0, 40)),
    )


events = st.lists(
    st.tuples(
        st.sampled_from(("", "b")),
        st.sampled_from("abcd"),
        st.integers(0, SPAN),
        st.integers(-8, 60),
        st.sampled_from(("", "x")),
    ),
    max_size=30,
).map(
    lambda rows: [
        Event(n, source, key, time, time + delay, digest)
        for n, (source, key, time, delay, digest) in enumerate(rows, start=1)
    ]
)


def in_order(batches):
    return sorted(batches, key=lambda batch: (batch.source, batch.start, batch.kind, batch.events))


def by_id(rejects):
    return sorted(rejects, key=lambda reject: (reject.rejected, reject.reason))


@many
@given(late_configs(), events, st.data())
def test_p5_determinism_any_order_chunks_ticks_and_restarts_give_what_the_plain_rule_gives(config, records, data):
    batcher, batches, rejects = Batcher.of(config), [], []
    waiting = list(data.draw(st.permutations(records)))
    while waiting:
        size = data.draw(st.integers(1, 8))
        chunk, waiting = waiting[:size], waiting[size:]
        outcomes = [batcher.receive_many(chunk)]
        if data.draw(st.booleans()):
            safe = min((event.received_at for event in waiting), default=3 * SPAN)
            outcomes.append(batcher.advance(safe - data.draw(st.integers(0, 5))))
        if data.draw(st.booleans()):
            batcher = Batcher.restore(batcher.snapshot(), config)
        batches += itertools.chain.from_iterable(outcome.batches for outcome in outcomes)
        rejects += itertools.chain.from_iterable(outcome.rejects for outcome in outcomes)
    clock, last = batcher.clock, batcher.flush()
    expected, refused = plain_batches(records, config, clock)
    assert in_order(batches + last.batches) == in_order(expected)
    assert by_id(rejects + last.rejects) == refused


@many
@given(late_configs(), events)
def test_conservation_every_record_is_in_one_batch_that_stands_or_is_refused_once(config, records):
    batcher = Batcher.of(config)
    outcomes = [batcher.receive_many(records), batcher.flush()]
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    replaced = {name for batch in batches for name in batch.amends}
    standing = [number for batch in batches if batch.batch not in replaced for number in batch.events]
    refused = [reject.rejected for outcome in outcomes for reject in outcome.rejects]
    assert sorted(standing + refused) == [event.id for event in records]
    assert len({batch.batch for batch in batches}) == len(batches)


@many
@given(late_configs(), events)
def test_punctual_records_come_out_as_if_nothing_had_been_late(config, records):
    strict = config.punctual
    batcher, plain = Batcher.of(config), Batcher.of(strict)
    both = [batcher.receive_many(records), batcher.flush()], [plain.receive_many(records), plain.flush()]
    first, second = ([batch for outcome in outcomes for batch in outcome.batches] for outcomes in both)
    assert [b.events for b in first if b.kind == "batch"] == [b.events for b in second]


@many
@given(late_configs(), events)
def test_p5_latency_every_batch_comes_on_the_tick_it_names(config, records):
    batcher = Batcher.of(config)
    for tick in range(-20, 2 * SPAN):
        outcomes = [batcher.advance(tick), batcher.receive_many([e for e in records if e.received_at == tick])]
        assert {batch.closed_at for outcome in outcomes for batch in outcome.batches} <= {tick}


UC5 = "a:110@120 b:120@130 c:130@140 a:175@190 b:200@205 d:145@215"


def test_the_undecided_message_of_uc5_is_batched_apart_under_side():
    batcher = Batcher(50, 20, late="side", grace=60)
    batcher.receive_many(spelled(UC5))
    batches, rejects = batcher.advance(1000)
    assert rejects == []
    assert [(b.kind, b.events, b.closed_at) for b in batches] == [
        ("batch", (1, 2, 3), 181),
        ("batch", (4, 5), 246),
        ("side", (6,), 276),
    ]


def test_the_undecided_message_of_uc5_amends_the_batch_that_sorting_gives_it():
    batcher = Batcher(50, 20, late="amend", grace=60)
    batcher.receive_many(spelled(UC5))
    first, amendment, second = batcher.advance(1000).batches
    assert (first.events, second.events) == ((1, 2, 3), (4, 5))
    assert (amendment.kind, amendment.events, amendment.closed_at) == ("amendment", (1, 2, 3, 6), 241)
    assert amendment.amends == (first.batch,)


def test_what_exceeds_the_grace_is_late_under_every_policy():
    for late in ("side", "amend"):
        batcher = Batcher(5, 20, late=late, grace=10)
        assert batcher.receive_many(spelled("a:0@30 b:0@31")).rejects == [Reject(2, "late")]


def test_late_records_that_tear_a_batch_apart_are_amendments_that_all_name_it():
    batcher = Batcher(50, 20, late="amend", grace=100)
    batcher.receive_many(spelled("a:10@10 b:20@20 b:15@90"))
    batch, *amendments = batcher.flush().batches
    assert batch.events == (1, 2)
    assert [(item.events, item.amends) for item in amendments] == [((1, 3), (batch.batch,)), ((2,), (batch.batch,))]


def test_a_side_batch_is_never_taken_for_a_batch_of_the_same_records():
    batcher = Batcher(50, 20, late="side", grace=100)
    batcher.receive_many(spelled("a:10@10 a:10@90"))
    one, other = batcher.flush().batches
    assert (one.kind, other.kind) == ("batch", "side")
    assert one.batch != other.batch


def test_a_broken_bound_leaves_both_engines_as_they_were():
    for late in ("side", "amend"):
        batcher = Batcher(50, 20, late=late, grace=60)
        batcher.advance(100)
        before = batcher.snapshot()
        with pytest.raises(BoundBrokenError):
            batcher.receive_many(spelled("a:100@110 b:10@60"))
        assert batcher.snapshot() == before


def test_reject_is_the_default_and_spelled_in_no_identity():
    assert BatchConfig(50, 20, late="reject") == BatchConfig(50, 20)
    assert BatchConfig(50, 20, late="side", grace=7).rules_text.endswith(" late=side grace=7")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"late": "later"}, "late"),
        ({"grace": 5}, "grace is set"),
        ({"late": "side"}, "late is side, but grace is not set"),
        ({"late": "side", "grace": -1}, "invalid grace -1"),
        ({"late": "amend", "grace": 49}, "grace is 49 ticks, but late = amend requires at least the window, 50 ticks"),
        ({"late": "side", "grace": 9, "mode": "faithful"}, "faithful"),
    ],
)
def test_policies_that_make_no_sense_are_refused(wrong, what):
    with pytest.raises(ConfigError, match=what):
        BatchConfig(50, 20, **wrong)


def test_columns_know_no_late_records():
    with pytest.raises(ConfigError, match="use a Batcher"):
        cut_columns(None, BatchConfig(50, 20, late="side", grace=5))
