"""``millstream batch shrink``: a small arrival in which the faithful mode and the order-free rule part ways."""

from __future__ import annotations

import itertools
import json
import random

import msgspec
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Event
from millstream.batching.counterexample import at_once, batch_membership, smallest_counterexample
from millstream.cli.batch import batch
from millstream.testing.batching_oracle import respelled, spelled
from support.commands import run_command

RULES = BatchConfig(50, 20, conflict_cut="midpoint")
PLAIN = ["--window", "50", "--max-delay", "20"]


def fleet(seed, count=120):
    draw = random.Random(seed)
    times = [(draw.choice("pq"), draw.choice("abcd"), draw.randrange(1500)) for _ in range(count)]
    return [Event(n, source, key, time, time + draw.randint(0, 20)) for n, (source, key, time) in enumerate(times)]


def apart(events, rules=RULES):
    """Whether the mode faithful depends on how *events*, in order of receipt, came."""
    faithful = msgspec.structs.replace(rules, mode="faithful")
    return batch_membership(events, faithful) != batch_membership(at_once(events), faithful)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("pq"), st.sampled_from("abcd"), st.integers(0, 300), st.integers(-5, 30)), max_size=40
    ),
    rules=st.builds(BatchConfig, st.integers(0, 60), st.integers(0, 25), conflict_cut=st.just("midpoint")),
)
def test_what_is_left_shows_what_the_arrival_does_and_nothing_of_it_can_be_left_away_or_come_at_once(rows, rules):
    events = [Event(n, source, key, time, time + delay) for n, (source, key, time, delay) in enumerate(rows)]
    taken = [event for event in events if -rules.lead <= event.received_at - event.event_time <= rules.max_delay]
    found = smallest_counterexample(events, rules)
    if found is None:
        arrival = sorted(taken, key=lambda event: event.received_at)
        assert not any(apart([event for event in arrival if event.source == source], rules) for source in "pq")
        return
    small = found.events
    assert apart(small, rules)
    assert any(event.received_at != event.event_time for event in small)
    assert sorted(number for group in found.faithful for number in group) == sorted(event.id for event in small)
    assert found.order_free == batch_membership(at_once(small), msgspec.structs.replace(rules, mode="order-free"))
    for position, event in enumerate(small):
        others = small[:position] + small[position + 1 :]
        assert not apart(others, rules)
        if len(small) > 2 and event.received_at != event.event_time:
            prompt = msgspec.structs.replace(event, received_at=event.event_time)
            assert not apart(
                sorted([*others[:position], prompt, *others[position:]], key=lambda e: e.received_at), rules
            )
    if len(small) > 2:
        pairs = itertools.combinations(sorted(taken, key=lambda event: event.received_at), 2)
        assert not any(apart(list(pair), rules) for pair in pairs if pair[0].source == pair[1].source)


def test_two_events_in_the_wrong_order_are_the_smallest_difference():
    events = spelled("x:0@1 b:110@111 a:105@125 y:300@301")
    found = smallest_counterexample(events, RULES)
    assert respelled(events, [event.id for event in found.events]) == "b:110 a:105"
    assert (found.faithful, found.prompt, found.order_free) == ([(3,), (2,)], [(3, 2)], [(3, 2)])


def test_two_are_looked_for_before_three_or_more():
    found = smallest_counterexample(fleet(3), RULES)
    assert len(found.events) == 2


def test_a_difference_of_rules_alone_is_none_of_arrival():
    events = spelled("a:0@0 b:30@30 a:45@45 c:60@60")
    faithful, order_free = (
        batch_membership(events, msgspec.structs.replace(RULES, mode=m)) for m in ("faithful", "order-free")
    )
    assert faithful != order_free
    assert smallest_counterexample(events, RULES) is None


def test_events_that_come_in_order_and_in_time_leave_nothing_to_shrink():
    assert smallest_counterexample(spelled("a:0@0 b:10@10 a:60@60"), RULES) is None
    assert smallest_counterexample(spelled("b:110@111 a:105@145"), RULES) is None, "both modes refuse what is late"
    assert smallest_counterexample([], RULES) is None


def test_the_command_prints_lines_that_show_the_difference_when_they_are_batched_again():
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in fleet(1))
    result = CliRunner().invoke(batch, ["shrink", *PLAIN], input=lines, catch_exceptions=False)
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == [
        "faithful, as received",
        "faithful, without delays",
        "order-free, in any order",
    ]
    events = [json.loads(line) for line in result.stdout.splitlines()]
    prompt = sorted(({**event, "received_at": event["event_time"]} for event in events), key=lambda e: e["event_time"])
    again, groups = ["--mode", "faithful", *PLAIN], []
    for some in (events, prompt):
        fed = b"".join(json.dumps(event).encode() + b"\n" for event in some)
        output = CliRunner().invoke(batch, again, input=fed, catch_exceptions=False).stdout
        groups.append(sorted(json.loads(line)["events"] for line in output.splitlines()))
    assert groups[0] != groups[1]


def test_the_command_ends_with_code_1_where_arrival_makes_no_difference():
    answer = run_command("batch", "shrink", *PLAIN)
    assert (answer.code, answer.out) == (1, "")
    assert "makes no difference" in answer.err


def test_a_file_that_is_named_like_a_tool_is_batched_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shrink").write_bytes(b'{"id":1,"key":"a","event_time":5,"received_at":6}\n')
    result = CliRunner().invoke(batch, ["./shrink", *PLAIN], catch_exceptions=False)
    assert json.loads(result.stdout)["events"] == [1]
