"""``millstream batch explain``: every reason is told, and what would have kept a record really keeps it."""

from __future__ import annotations

import json

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, ConfigError, Event
from millstream.batching.explain import BatchStory, RejectStory, explain
from millstream.cli.batch import batch
from millstream.testing.batching import plain_batches, spelled

UC3 = "a:110@120 b:120@130 c:130@140 a:140@150 a:155@170"


def stories(text, **rules):
    return list(explain(spelled(text, source="pump"), BatchConfig(**{"window": 50, "max_delay": 20} | rules)))


def test_the_documents_third_case_is_told():
    first, second, third = stories(UC3)
    assert (first.began, first.ended, first.by, first.repeats) == ("first", "conflict", 4, 1)
    assert "the key 'a' is there at 110 (record 1) and 140 (record 4), cut before the second" in first.why
    assert (second.began, second.ended, second.by, second.repeats) == ("conflict", "conflict", 5, 4)
    assert (third.began, third.ended, third.by) == ("conflict", "flush", None)
    assert third.why == "Began at 155: a key repeated in the batch before. Ended at 155: the input ended."


def test_a_midpoint_cut_names_the_pair_that_it_parts():
    first, _ = stories("a:0@0 b:6@6 a:10@10", conflict_cut="midpoint")
    assert (first.events, first.by, first.repeats) == ((1,), 3, 1)
    assert "cut halfway between them" in first.why


def test_windows_and_caps_are_told():
    first, second, third = stories("a:0@0 b:1@1 c:2@2 d:90@90", max_count=2)
    assert (first.ended, first.by) == ("size", 3)
    assert "would exceed max_count=2" in first.why
    assert (second.began, second.ended, second.by) == ("size", "window", 4)
    assert "record 4 at 90 lies 88 after the start, the window is 50" in second.why
    assert third.began == "window"


def test_refusals_are_told_with_what_would_have_kept_the_record():
    told = [s for s in stories("a:10@12#0 a:10@13#0 a:10@12#1 b:10@41 c:60@12") if isinstance(s, RejectStory)]
    assert [(s.rejected, s.reason, s.max_delay, s.leap, s.copy_of) for s in told] == [
        (2, "duplicate", None, None, 1),
        (3, "conflicting_duplicate", None, None, 1),
        (4, "late", 31, None, None),
        (5, "future", None, 48, None),
    ]


events = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from("abc"), st.integers(0, 60), st.integers(-20, 40)), max_size=25
).map(lambda rows: [Event(n, s, key, t, t + delay) for n, (s, key, t, delay) in enumerate(rows)])
configs = st.builds(
    BatchConfig,
    st.integers(0, 30),
    st.integers(0, 20),
    conflict_cut=st.sampled_from(["at_event", "midpoint"]),
    max_count=st.none() | st.integers(1, 4),
)


@settings(max_examples=200, deadline=None)
@given(events, configs)
def test_the_stories_are_those_of_the_batches_and_name_true_causes(records, config):
    told, known = list(explain(records, config)), {event.id: event for event in records}
    batches, rejects = plain_batches(records, config)
    mine = [story for story in told if isinstance(story, BatchStory)]
    assert [(s.batch, s.ended) for s in mine] == [(b.batch, b.cut) for b in batches]
    assert [(s.rejected, s.reason) for s in told[len(mine) :]] == [(r.rejected, r.reason) for r in rejects]
    for story in mine:
        if story.ended == "conflict":
            assert known[story.by].key == known[story.repeats].key
            assert story.repeats in story.events
            assert known[story.by].event_time <= story.start + config.window


@settings(max_examples=200, deadline=None)
@given(events, configs)
def test_the_delay_that_is_named_keeps_a_late_record_and_one_less_does_not(records, config):
    for story in explain(records, config):
        if isinstance(story, RejectStory) and story.reason in ("late", "future"):
            (record,) = [event for event in records if event.id == story.rejected]
            rule = "max_delay" if story.reason == "late" else "leap"
            enough = getattr(story, rule)
            for value, refused in ((enough, 0), (enough - 1, 1)):
                batcher = Batcher.of(msgspec.structs.replace(config, **{rule: value}))
                assert len(batcher.receive(record).rejects) == refused


def test_ids_that_name_two_records_and_other_modes_are_refused():
    with pytest.raises(ConfigError, match="same id"):
        list(explain([Event(1, "", "a", 1, 1)] * 2, BatchConfig(5, 5)))
    with pytest.raises(ConfigError, match="order-free"):
        list(explain([], BatchConfig(5, 5, mode="faithful")))


def test_the_command_prints_the_stories_as_lines():
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in spelled(UC3))
    command = ["explain", "--window", "50", "--max-delay", "20"]
    result = CliRunner().invoke(batch, command, input=lines, catch_exceptions=False)
    assert [json.loads(line)["ended"] for line in result.stdout.splitlines()] == ["conflict", "conflict", "flush"]
