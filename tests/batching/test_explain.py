"""``millstream batch explain``: every reason is told, and what would have kept a record really keeps it."""

from __future__ import annotations

import json

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, ConfigError, Event, Override, Rulebook
from millstream.batching.explain import BatchExplanation, RejectExplanation, explain
from millstream.cli.batch import batch
from millstream.testing.batching_oracle import spelled

UC3 = "a:110@120 b:120@130 c:130@140 a:140@150 a:155@170"


def stories(text, **rules):
    return list(explain(spelled(text, source="pump"), BatchConfig(**{"window": 50, "max_delay": 20} | rules)))


def test_the_documents_third_case_is_told():
    first, second, third = stories(UC3)
    assert (first.began, first.ended, first.by, first.repeats) == ("first", "conflict", 4, 1)
    assert "the key 'a' occurs at 110 (record 1) and 140 (record 4), cut before the second" in first.why
    assert (second.began, second.ended, second.by, second.repeats) == ("conflict", "conflict", 5, 4)
    assert (third.began, third.ended, third.by) == ("conflict", "flush", None)
    assert third.why == "Began at 155: a key of the previous batch repeated. Ended at 155: the input ended."


def test_a_midpoint_cut_names_the_pair_that_it_parts():
    first, _ = stories("a:0@0 b:6@6 a:10@10", conflict_cut="midpoint")
    assert (first.events, first.by, first.repeats) == ((1,), 3, 1)
    assert "cut halfway between them" in first.why


def test_windows_and_caps_are_told():
    first, second, third = stories("a:0@0 b:1@1 c:2@2 d:90@90", max_count=2)
    assert (first.ended, first.by) == ("size", 3)
    assert "would exceed max_count=2" in first.why
    assert (second.began, second.ended, second.by) == ("size", "window", 4)
    assert "record 4 at 90 is 88 after the start, the window is 50" in second.why
    assert third.began == "window"


def test_refusals_are_told_with_what_would_have_kept_the_record():
    told = [s for s in stories("a:10@12#0 a:10@13#0 a:10@12#1 b:10@41 c:60@12") if isinstance(s, RejectExplanation)]
    assert [(s.rejected, s.reason, s.max_delay, s.leap, s.copy_of) for s in told] == [
        (2, "duplicate", None, None, 1),
        (3, "conflicting_duplicate", None, None, 1),
        (4, "late", 31, None, None),
        (5, "future", None, 48, None),
    ]


events = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from("abc"), st.integers(0, 60), st.integers(-20, 40)), max_size=25
).map(lambda rows: [Event(n, s, key, t, t + delay) for n, (s, key, t, delay) in enumerate(rows)])
plain = st.builds(
    BatchConfig,
    st.integers(0, 30),
    st.integers(0, 20),
    conflict_cut=st.sampled_from(["at_event", "midpoint"]),
    max_count=st.none() | st.integers(1, 4),
)
late = st.builds(
    lambda config, policy, grace: msgspec.structs.replace(config, late=policy, grace=config.window + grace),
    plain,
    st.sampled_from(["side", "amend"]),
    st.integers(0, 15),
)
configs = plain | late
rulebooks = st.builds(
    lambda default, other, place: Rulebook(default, (Override(other, **place),) if other else ()),
    configs,
    st.none() | configs,
    st.sampled_from([{"source": "p"}, {"key": "a"}, {"source": "q", "key": "b"}]),
)


def run(records, rules):
    """What ``millstream batch`` makes of *records*: batches, and refusals by id."""
    batcher = Batcher.of(rules)
    outcomes = [batcher.receive_many(records)]
    if records:
        outcomes.append(batcher.advance(max(record.received_at for record in records)))
    outcomes.append(batcher.flush())
    batches = [batch for outcome in outcomes for batch in outcome.batches]
    return batches, {reject.rejected: reject.reason for outcome in outcomes for reject in outcome.rejects}


@settings(max_examples=300, deadline=None)
@given(events, rulebooks)
def test_the_stories_are_those_of_the_batches_and_name_true_causes(records, rules):
    told, known = list(explain(records, rules)), {event.id: event for event in records}
    batches, rejects = run(records, rules)
    mine = [story for story in told if isinstance(story, BatchExplanation)]
    said = [(s.batch, s.ended, s.kind, s.amends) for s in mine]
    assert sorted(said) == sorted((b.batch, b.cut, b.kind, b.amends) for b in batches)
    assert {s.rejected: s.reason for s in told[len(mine) :]} == rejects
    for story in mine:
        if story.ended == "conflict":
            assert known[story.by].key == known[story.repeats].key
            assert story.repeats in story.events
        if story.by is not None:
            assert known[story.by].source == story.source
            assert story.by not in story.events


@settings(max_examples=300, deadline=None)
@given(events, rulebooks)
def test_what_would_have_kept_a_record_keeps_it_and_one_less_does_not(records, rules):
    choose = rules.chooser()
    for story in explain(records, rules):
        if not isinstance(story, RejectExplanation) or story.reason not in ("late", "future"):
            continue
        (record,) = [event for event in records if event.id == story.rejected]
        config = choose(record.source, record.key)
        rule = "leap" if story.reason == "future" else "max_delay" if config.policy == "reject" else "grace"
        value = getattr(story, rule)
        assert (value is None) == (story.copy_of is not None)
        least = {"leap": -1, "max_delay": 1, "grace": 1}[rule] * (record.received_at - record.event_time)
        least -= config.max_delay if rule == "grace" else 0
        mine = [event for event in records if choose(event.source, event.key) == config]
        refused = [run(mine, msgspec.structs.replace(config, **{rule: limit}))[1] for limit in (least - 1, least)]
        assert record.id in refused[0]
        if value is not None:
            assert value == least
            assert record.id not in refused[1]
            if rule == "max_delay" and config.leap == config.max_delay:  # it follows where nobody says otherwise
                assert record.id not in run(mine, msgspec.structs.replace(config, max_delay=least, leap=least))[1]


def test_a_late_copy_would_not_have_been_kept_by_any_delay():
    told = {s.rejected: s for s in stories("a:10@12#0 a:10@60#0 b:10@60") if isinstance(s, RejectExplanation)}
    assert (told[2].max_delay, told[2].copy_of) == (None, 1)
    assert (
        "Even with max_delay 50, the record would not be in a batch: record 1 has the same key and time" in told[2].why
    )
    assert (told[3].max_delay, told[3].copy_of) == (50, None)


def test_a_batch_that_the_clock_closed_is_told_with_the_reason_that_batch_gives():
    first, second = stories("a:0@0 b:400@400")
    assert (first.ended, second.ended) == ("window", "flush")
    records = [Event(1, "p", "a", 0, 0), Event(2, "q", "c", 400, 400)]
    alone, other = explain(records, BatchConfig(50, 20))
    assert (alone.ended, alone.by, other.ended) == ("window", None, "flush")
    assert "the window is 50, and after 71 no further record could belong to the batch" in alone.why


def test_late_policies_and_overrides_are_told():
    side = stories("a:0@0 b:1@40 c:2@90", late="side", grace=60)
    assert [(s.kind, s.events) for s in side[:2]] == [("batch", (1,)), ("side", (2,))]
    assert side[1].why.startswith("A batch of late records only. ")
    assert (side[2].reason, side[2].grace) == ("late", 68)
    assert "max_delay is 20 and grace 60. With grace 68, the record would be in a batch" in side[2].why
    amend = stories("a:0@0 b:1@40", late="amend", grace=60)
    assert [(s.kind, s.events) for s in amend] == [("batch", (1,)), ("amendment", (1, 2))]
    assert amend[1].amends == (amend[0].batch,)
    rules = Rulebook(BatchConfig(50, 20), (Override(BatchConfig(50, 5), key="b"),))
    (late,) = [s for s in explain(spelled("a:0@10 b:0@10"), rules) if isinstance(s, RejectExplanation)]
    assert "max_delay is 5. With max_delay 10, the record would be in a batch" in late.why


def test_ids_that_name_two_records_and_other_modes_are_refused():
    with pytest.raises(ConfigError, match=r"two events have the id \d+"):
        list(explain([Event(1, "", "a", 1, 1)] * 2, BatchConfig(5, 5)))
    with pytest.raises(ConfigError, match="order-free"):
        list(explain([], BatchConfig(5, 5, mode="faithful")))


MESSAGES = b"""
{"id":1,"key":"a","source":"p","event_time":1357016400000000,"received_at":1357016400500000,"body":""}
{"id":2,"key":"b","source":"p","event_time":1357016400000000,"received_at":1357016431000000,"body":""}
"""


def test_messages_are_told_with_dates_and_durations():
    command = ["explain", "--window", "1000000", "--max-delay", "2000000"]
    result = CliRunner().invoke(batch, command, input=MESSAGES.lstrip(), catch_exceptions=False)
    kept, refused = map(json.loads, result.stdout.splitlines())
    assert kept["why"].startswith("Began at 2013-01-01T05:00:00Z: it contains the first record of its source.")
    assert refused["why"] == (
        "The record took 31 s from event to receipt; max_delay is 2 s. "
        "With max_delay 31 s, the record would be in a batch."
    )
    assert refused["max_delay"] == 31_000_000


def test_the_command_takes_the_rules_that_batch_takes(tmp_path):
    (tmp_path / "others.toml").write_text('[[override]]\nkey = "b"\nmax_delay = 40000000\n')
    command = ["--window", "1000000", "--max-delay", "2000000", "--overrides", str(tmp_path / "others.toml")]
    policy = ["--late", "side", "--grace", "60000000"]
    for options in (command, [*command[:4], *policy]):
        explained = CliRunner().invoke(batch, ["explain", *options], input=MESSAGES.lstrip(), catch_exceptions=False)
        batched = CliRunner().invoke(batch, options, input=MESSAGES.lstrip(), catch_exceptions=False)
        told = [json.loads(line)["batch"] for line in explained.stdout.splitlines()]
        assert sorted(told) == sorted(json.loads(line)["batch"] for line in batched.stdout.splitlines())
        assert len(told) == 2


def test_the_command_prints_the_stories_as_lines():
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in spelled(UC3))
    command = ["explain", "--window", "50", "--max-delay", "20"]
    result = CliRunner().invoke(batch, command, input=lines, catch_exceptions=False)
    assert [json.loads(line)["ended"] for line in result.stdout.splitlines()] == ["conflict", "conflict", "flush"]
