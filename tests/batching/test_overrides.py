"""Other rules for some sources and keys: each record is batched as if only those under its rules existed."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, BoundBrokenError, ConfigError, Event, Override, Rulebook
from millstream.batching.rulebook import read_overrides
from millstream.cli.batch import batch
from millstream.testing.batching_oracle import plain_batches, spelled

DEFAULT = BatchConfig(20, 8)
CONFIGS = st.builds(BatchConfig, st.integers(0, 30), st.integers(0, 20), max_count=st.none() | st.integers(1, 4))


@st.composite
def rulebooks(draw):
    places = st.tuples(st.sampled_from((None, "p", "q")), st.sampled_from((None, "a", "b")))
    chosen = draw(st.lists(places.filter(any), unique=True, max_size=4))
    return Rulebook(draw(CONFIGS), tuple(Override(draw(CONFIGS), *place) for place in chosen))


events = st.lists(
    st.tuples(st.sampled_from("pqr"), st.sampled_from("abc"), st.integers(0, 80), st.integers(-8, 25)), max_size=30
).map(lambda rows: [Event(n, s, key, t, t + delay) for n, (s, key, t, delay) in enumerate(rows)])


def config_for(rules, event):
    """The most specific override: source and key, then source, then key."""
    for wanted in ((event.source, event.key), (event.source, None), (None, event.key)):
        for override in rules.overrides:
            if (override.source, override.key) == wanted:
                return override.config
    return rules.default


def in_order(batches):
    return sorted(batches, key=lambda item: (item.source, item.start, item.batch))


@settings(max_examples=300, deadline=None)
@given(rulebooks(), events, st.data())
def test_p5_determinism_each_set_of_rules_batches_its_own_records_in_any_order_and_over_restarts(rules, records, data):
    batcher, batches, rejects = Batcher.of(rules), [], []
    waiting = list(data.draw(st.permutations(records)))
    while waiting:
        chunk, waiting = waiting[:5], waiting[5:]
        outcomes = [batcher.receive_many(chunk)]
        outcomes.append(batcher.advance(min((event.received_at for event in waiting), default=300)))
        batcher = Batcher.restore(batcher.snapshot(), rules)
        batches += itertools.chain.from_iterable(outcome.batches for outcome in outcomes)
        rejects += itertools.chain.from_iterable(outcome.rejects for outcome in outcomes)
    clock, last = batcher.clock, batcher.flush()
    expected = [
        plain_batches([event for event in records if config_for(rules, event) == config], config, clock)
        for config in rules.configs
    ]
    assert in_order(batches + last.batches) == in_order(itertools.chain.from_iterable(each for each, _ in expected))
    refused = [(item.rejected, item.reason) for item in rejects + last.rejects]
    assert sorted(refused) == sorted((item.rejected, item.reason) for _, each in expected for item in each)


def test_a_broken_bound_under_one_set_of_rules_leaves_all_as_they_were():
    batcher = Batcher.of(Rulebook(DEFAULT, (Override(BatchConfig(5, 5), key="b"),)))
    batcher.advance(100)
    before = batcher.snapshot()
    with pytest.raises(BoundBrokenError):
        batcher.receive_many(spelled("a:100@110 b:90@90"))
    assert batcher.snapshot() == before


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ((Override(DEFAULT),), "has neither a source nor a key"),
        ((Override(DEFAULT, "p"), Override(BatchConfig(1, 1), "p")), "two overrides are for source 'p'"),
        ((Override(BatchConfig(1, 1, mode="faithful"), "p"),), "has mode faithful, but the default"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(overrides, what):
    with pytest.raises(ConfigError, match=what):
        Rulebook(DEFAULT, overrides)


@pytest.mark.parametrize("name", ["conflict_cut", "mode", "late"])
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(name):
    with pytest.raises(ConfigError, match=f"invalid {name} 'upside-down': choose one of [a-z]"):
        BatchConfig(50, 20, **{name: "upside-down"})


def test_what_an_override_does_not_say_is_taken_from_the_options():
    (override,) = read_overrides('[[override]]\nsource = "p"\nmax_delay = 90\n', {"window": 50, "max_delay": 20})
    assert override == Override(BatchConfig(50, 90), "p")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[", "invalid TOML in the overrides"),
        ("[override]\nsource = 'p'", "write the header of each as"),
        ("[[rule]]\nsource = 'p'", "unknown keys in the overrides: rule; use only"),
        ("[[override]]\nsource = 'p'\nwindwo = 3", "'windwo'"),
        (
            "[[override]]\nsource = 'p'\nwindow = 'wide'",
            "override 1 for source 'p' .*window: must be an integer, not a",
        ),
        ("[[override]]\nsource = 7", r"override 1 for source 7 .*source: must be a string, not an integer"),
        ("[[override]]\nsource = 'p'\nwindow = -3", r"override 1 for source 'p' .*invalid window -3"),
        (
            "[[override]]\nkey = 'k'\n[[override]]\nlate = 'side'",
            r"override 2 is not valid: late is side, but grace",
        ),
        ("[[override]]\nkey = 'k'\nmode = 'faithful'", r"override 1 for key 'k' has the unknown member 'mode'"),
    ],
)
def test_a_document_of_overrides_that_is_wrong_is_refused_by_name(text, what):
    with pytest.raises(ConfigError, match=what):
        read_overrides(text, {"window": 50, "max_delay": 20})


def test_the_command_takes_overrides(tmp_path):
    path = tmp_path / "overrides.toml"
    path.write_text('[[override]]\nkey = "b"\nwindow = 0\n')
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in spelled("a:0@0 b:1@1 a:2@2 b:3@3 c:4@4"))
    command = ["--window", "50", "--max-delay", "20", "--overrides", str(path)]
    result = CliRunner().invoke(batch, command, input=lines, catch_exceptions=False)
    assert sorted(json.loads(line)["events"] for line in result.stdout.splitlines()) == [[1], [2], [3, 5], [4]]
