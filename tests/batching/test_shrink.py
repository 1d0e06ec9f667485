"""``millstream batch shrink``: a small arrival in which the faithful mode and the order-free rule part ways."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from click.testing import CliRunner

from millstream.batching import BatchConfig, Event
from millstream.batching.shrink import groupings, shrink
from millstream.cli.batch import batch
from millstream.testing.batching import respelled, spelled
from millstream.testing.commands import run_command

RULES = BatchConfig(50, 20, conflict_cut="midpoint")
PLAIN = ["--window", "50", "--max-delay", "20"]


def fleet(seed, count=120):
    draw = random.Random(seed)
    times = [(draw.choice("pq"), draw.choice("abcd"), draw.randrange(1500)) for _ in range(count)]
    return [Event(n, source, key, time, time + draw.randint(0, 20)) for n, (source, key, time) in enumerate(times)]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_left_differs_and_nothing_of_it_can_be_left_away_or_come_at_once(seed):
    found = shrink(fleet(seed), RULES)
    assert found.faithful != found.order_free
    assert 2 <= len(found.events) <= 5
    assert (found.faithful, found.order_free) == groupings(found.events, RULES)
    for position, event in enumerate(found.events):
        others = found.events[:position] + found.events[position + 1 :]
        faithful, order_free = groupings(others, RULES)
        assert faithful == order_free
        if event.received_at != event.event_time:
            prompt = msgspec.structs.replace(event, received_at=event.event_time)
            arrival = sorted([*others[:position], prompt, *others[position:]], key=lambda e: e.received_at)
            faithful, order_free = groupings(arrival, RULES)
            assert faithful == order_free


def test_two_events_in_the_wrong_order_are_the_smallest_difference():
    events = spelled("x:0@1 b:110@111 a:105@125 y:300@301")
    found = shrink(events, RULES)
    assert respelled(events, [event.id for event in found.events]) == "b:110 a:105"
    assert (found.faithful, found.order_free) == ([(3,), (2,)], [(3, 2)])


def test_events_that_come_in_order_and_in_time_leave_nothing_to_shrink():
    assert shrink(spelled("a:0@0 b:10@10 a:60@60"), RULES) is None
    assert shrink([], RULES) is None


def test_the_command_prints_lines_that_show_the_difference_when_they_are_batched_again():
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in fleet(1))
    result = CliRunner().invoke(batch, ["shrink", *PLAIN], input=lines, catch_exceptions=False)
    assert result.stderr.startswith("order-free: {")
    groups = []
    for mode in ("order-free", "faithful"):
        again = ["--cut", "midpoint", "--mode", mode, *PLAIN]
        output = CliRunner().invoke(batch, again, input=result.stdout_bytes, catch_exceptions=False).stdout
        groups.append(sorted(json.loads(line)["events"] for line in output.splitlines()))
    assert groups[0] != groups[1]


def test_the_command_ends_with_code_1_where_the_modes_agree():
    answer = run_command("batch", "shrink", *PLAIN)
    assert (answer.code, answer.out) == (1, "")
    assert "the modes agree" in answer.err


def test_a_file_that_is_named_like_a_tool_is_batched_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shrink").write_bytes(b'{"id":1,"key":"a","event_time":5,"received_at":6}\n')
    result = CliRunner().invoke(batch, ["./shrink", *PLAIN], catch_exceptions=False)
    assert json.loads(result.stdout)["events"] == [1]
