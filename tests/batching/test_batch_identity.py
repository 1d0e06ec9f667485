"""The identity of a batch, against the vectors of ``docs/formats/batch-id.md``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from millstream.batching import BatchConfig, Batcher, ConfigError, Event
from millstream.batching.identity import batch_id

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "batch-id.md"


def vectors():
    lines = DOCUMENT.read_text(encoding="utf-8").split("```")[1].strip().splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def config_of(rules):
    _, *pairs = rules.split()
    fields = dict(pair.split("=") for pair in pairs)
    return BatchConfig(**{name: int(value) if value.isdecimal() else value for name, value in fields.items()})


@pytest.mark.parametrize(("text", "identity"), vectors())
def test_the_documents_vectors_hold(text, identity):
    assert hashlib.sha256(text.encode()).hexdigest() == identity
    _, rules, source, start, members = json.loads(text)
    config = config_of(rules)
    assert config.rules_text == rules
    rows = [(*member, 7, 9) for member in members]
    assert rows[0][0] == start
    assert batch_id(config, source, rows) == identity


def batch_of(*events, config=None):
    batcher = Batcher.of(config or BatchConfig(50, 20))
    batcher.receive_many(events)
    (batch,) = batcher.flush().batches
    return batch.batch


ONE = Event(1, "pump", "a", 10, 12, "00")


def test_p5_determinism_ids_and_receive_times_do_not_enter_the_identity():
    assert batch_of(ONE) == batch_of(Event(99, "pump", "a", 10, 29, "00"))


@pytest.mark.parametrize(
    "other",
    [
        Event(1, "fan", "a", 10, 12, "00"),
        Event(1, "pump", "b", 10, 12, "00"),
        Event(1, "pump", "a", 11, 12, "00"),
        Event(1, "pump", "a", 10, 12, "01"),
    ],
    ids=["source", "key", "event time", "digest"],
)
def test_everything_that_a_record_says_enters_the_identity(other):
    assert batch_of(ONE) != batch_of(other)


@pytest.mark.parametrize(
    "rules",
    [
        BatchConfig(51, 20),
        BatchConfig(50, 21, 20),
        BatchConfig(50, 20, 0),
        BatchConfig(50, 20, conflict_cut="midpoint"),
        BatchConfig(50, 20, mode="faithful"),
        BatchConfig(50, 20, max_count=9),
        BatchConfig(50, 20, max_bytes=9),
    ],
)
def test_every_rule_enters_the_identity(rules):
    assert batch_of(ONE) != batch_of(ONE, config=rules)


def test_rules_without_caps_are_encoded_and_named_as_before_there_were_caps():
    config = BatchConfig(50, 20)
    assert config.rules_text == "1 window=50 max_delay=20 leap=20 conflict_cut=at_event mode=order-free"
    names = ["window", "max_delay", "leap", "conflict_cut", "mode"]
    assert list(msgspec.to_builtins(config)) == names
    assert msgspec.convert(msgspec.to_builtins(config), BatchConfig) == config


def test_members_cannot_be_confused_by_what_their_keys_contain():
    first = batch_of(Event(1, "", 'a",""],[1,"b', 1, 1), Event(2, "", "c", 1, 1))
    second = batch_of(Event(1, "", "a", 1, 1), Event(2, "", "b", 1, 1), Event(3, "", "c", 1, 1))
    assert first != second


def test_the_default_leap_is_the_longest_delay():
    assert BatchConfig(50, 20) == BatchConfig(50, 20, 20)
    assert BatchConfig(50, 20).lead == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": -1},
        {"max_delay": -1},
        {"leap": -1},
        {"window": 1.5},
        {"window": True},
        {"window": 2**62},
        {"conflict_cut": "somewhere"},
        {"mode": "fast"},
        {"max_count": -1},
        {"max_bytes": -1},
        {"max_bytes": 2.5},
        {"max_count": 3, "mode": "faithful"},
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BatchConfig(**{"window": 50, "max_delay": 20} | wrong)
