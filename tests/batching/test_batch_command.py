"""``millstream batch`` as a user meets it."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher, Event
from millstream.batching.errors import EventLineError
from millstream.batching.json_lines import LONGEST_LINE, read_events
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.cli.batch import batch
from millstream.core.message import Message, encode_line
from millstream.testing.batching_oracle import plain_batches, spelled
from support.commands import run_command

UC3 = "a:110@120 b:120@130 c:130@140 a:140@150 a:155@170"
RULES = ("--window", "50", "--max-delay", "20")


def lines_of(events):
    return [msgspec.json.encode(event) + b"\n" for event in events]


def run(lines, *options):
    result = CliRunner().invoke(batch, [*RULES, *options], input=b"".join(lines), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout_bytes


def parsed(output):
    return [json.loads(line) for line in output.splitlines()]


def answer_to(text, *options):
    return run_command("batch", *RULES, *options, stdin=text.encode())


def random_events(seed, count=300):
    draw = random.Random(seed)
    return [
        Event(n, draw.choice("pq"), draw.choice("abc"), time, time + draw.randint(-25, 25), draw.choice(("", "0f")))
        for n in range(count)
        for time in [draw.randrange(2000)]
    ]


def test_the_documents_third_case_comes_out_line_by_line():
    out = parsed(run(lines_of(spelled(UC3, source="pump"))))
    assert [list(line) for line in out] == [["batch", "source", "start", "end", "closed_at", "cut", "events"]] * 3
    assert [line["events"] for line in out] == [[1, 2, 3], [4], [5]]
    assert [line["closed_at"] for line in out] == [160, None, None]
    assert [line["cut"] for line in out] == ["conflict", "conflict", "flush"]
    assert {line["source"] for line in out} == {"pump"}
    assert all(len(line["batch"]) == 64 for line in out)


def test_source_and_digest_may_be_left_out():
    (line,) = parsed(run([GOOD.encode(), b"\n"]))
    assert (line["source"], line["events"]) == ("", [1])


def test_every_reason_is_given():
    out = parsed(run(lines_of(spelled("a:10@12#0 a:10@13#0 a:10@12#1 b:10@31 c:60@12"))))
    assert [line for line in out if "rejected" in line] == [
        {"rejected": 2, "reason": "duplicate"},
        {"rejected": 3, "reason": "conflicting_duplicate"},
        {"rejected": 4, "reason": "late"},
        {"rejected": 5, "reason": "future"},
    ]


@pytest.mark.parametrize("cut", ["at_event", "midpoint"])
@pytest.mark.parametrize("seed", range(5))
def test_p5_determinism_the_order_of_the_lines_changes_no_byte(seed, cut):
    lines = lines_of(random_events(seed))
    expected = run(lines, "--cut", cut)
    for _ in range(3):
        random.Random(seed).shuffle(lines)
        assert run(lines, "--cut", cut) == expected


@pytest.mark.parametrize("seed", range(3))
def test_ordered_input_streams_the_same_lines(seed):
    lines = lines_of(sorted(random_events(seed), key=lambda event: event.received_at))
    assert sorted(run(lines, "--ordered").splitlines()) == sorted(run(lines).splitlines())


@settings(max_examples=50)
@given(st.integers(), st.booleans())
def test_the_command_gives_what_the_plain_rule_gives(seed, ordered):
    events = sorted(random_events(seed, 40), key=lambda event: event.received_at)
    out = parsed(run(lines_of(events), *(["--ordered"] if ordered else [])))
    clock = max(event.received_at for event in events)
    batches, rejects = plain_batches(events, BatchConfig(50, 20), clock)
    by_name = {line["batch"]: line for line in out if "batch" in line}
    assert by_name == {item.batch: json.loads(msgspec.json.encode(item)) for item in batches}
    refused = [(line["rejected"], line["reason"]) for line in out if "rejected" in line]
    assert sorted(refused) == [(item.rejected, item.reason) for item in rejects]


def test_a_batch_is_printed_as_soon_as_ordered_input_makes_it_certain():
    command = [sys.executable, "-m", "millstream", "batch", *RULES, "--ordered"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdin.write(b"".join(lines_of(spelled("a:0@0 b:1@100"))))
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["events"] == [1]
        child.stdin.close()
        assert child.wait(timeout=60) == 0


def test_faithful_takes_the_lines_in_their_order():
    events = spelled("a:0@1 a:10@11 b:2@12")
    out = parsed(run(lines_of(events), "--mode", "faithful"))
    batcher = Batcher(50, 20, mode="faithful")
    batches = batcher.receive_many(events).batches + batcher.flush().batches
    assert [line["batch"] for line in out] == [item.batch for item in batches]
    assert parsed(run(lines_of(events[::-1]), "--mode", "faithful")) != out


@pytest.mark.parametrize("cut", ["at_event", "midpoint"])
def test_faithful_and_a_cut_of_any_kind_are_not_taken_together(cut):
    answer = answer_to(GOOD, "--mode", "faithful", "--cut", cut)
    assert answer.code == 2
    assert "does not support --cut" in answer.err


@given(st.lists(st.integers(-300, 300) | st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_an_id_is_refused_exactly_where_it_was_there_before(ids):
    text = b"".join(b'{"id":%d,"key":"a","event_time":5,"received_at":6}\n' % number for number in ids)
    try:
        assert [event.id for _, event in read_events(io.BytesIO(text))] == ids
        assert len(set(ids)) == len(ids)
    except EventLineError as error:
        at = int(re.match(r"line (\d+)", str(error))[1])
        assert ids[at - 1] in ids[: at - 1]
        assert len(set(ids[: at - 1])) == at - 1


@pytest.mark.parametrize("options", [(), ("--ordered",), ("--mode", "faithful")])
def test_no_input_gives_no_output(options):
    assert run([], *options) == b""


GOOD = '{"id":1,"key":"a","event_time":5,"received_at":6}\n'


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ('{"id":1,"key":"a","event_time":"5","received_at":6}', r"line 2.*event_time"),
        ('{"id":1,"key":"a","event_time":5.5,"received_at":6}', r"line 2.*event_time"),
        ('{"id":1,"key":"a","event_time":5}', r"line 2.*received_at"),
        ('{"id":1,"key":null,"event_time":5,"received_at":6}', r"line 2.*key"),
        ('{"id":9223372036854775808,"key":"a","event_time":5,"received_at":6}', r"line 2.*id"),
        ('{"id":1,"key":"\\ud800","event_time":5,"received_at":6}', "line 2"),
        ('{"id":2,"key":"a","event_time":5,"received_at":6,"sorce":"p"}', "line 2.*sorce"),
        ('{"id":1,"key":"b","event_time":7,"received_at":7}', "line 2: id 1 is used by an earlier event"),
        ("[1]", "line 2"),
        ("{", "line 2"),
        ('{"id":1,"key":"' + "a" * LONGEST_LINE + '"}', "line 2 has more than"),
    ],
    ids=[
        "text for a time",
        "a fraction",
        "a member missing",
        "null",
        "65 bits",
        "half a character",
        "a member misspelled",
        "an id twice",
        "a list",
        "cut off",
        "endless",
    ],
)
def test_a_line_that_is_no_event_ends_the_command_with_its_number(bad, what):
    answer = answer_to(GOOD + bad + "\n")
    assert (answer.code, answer.out) == (2, "")
    assert re.search(what, answer.err)
    assert "Traceback" not in answer.err


def test_messages_as_a_log_prints_them_give_the_batches_that_a_service_gives():
    messages = [
        Message(f"{n}".encode() if n % 3 else b"\xff", "ab"[n % 2], "pump", 100 + 7 * n, 103 + 7 * n, id=n)
        for n in range(1, 30)
    ]
    tick = Message(b"", source=TICK_SOURCE, event_time=900, received_at=900, id=99)
    given = run([encode_line(message) + b"\n" for message in [*messages, tick]])
    assert given == run(lines_of(map(event_from_message, messages)))
    assert len(parsed(given)) > 3
    assert not any(99 in line.get("events", [line.get("rejected")]) for line in parsed(given))


@pytest.mark.parametrize("missing", ["id", "event_time", "received_at"])
def test_a_message_without_id_or_times_ends_the_command_with_its_line(missing):
    line = {"body": "x", "id": 3, "key": "a", "event_time": 5, "received_at": 6}
    del line[missing]
    answer = answer_to(GOOD + json.dumps(line) + "\n")
    assert (answer.code, answer.out) == (2, "")
    assert re.search("line 2.*an event_time and a received_at", answer.err)


def test_ordered_input_that_goes_back_in_time_is_refused_with_its_line():
    answer = answer_to(GOOD + GOOD.replace("6", "5").replace('"id":1', '"id":2'), "--ordered")
    assert answer.code == 2
    assert "line 2" in answer.err
    assert "--ordered" in answer.err


def test_caps_cut_by_count_and_by_bytes():
    sizes = [
        json.dumps({"id": n, "key": f"k{n}", "event_time": n, "received_at": n, "size": 4}) + "\n" for n in range(5)
    ]
    lines = [line.encode() for line in sizes]
    out = parsed(run(lines, "--max-count", "3"))
    assert [(line["events"], line["cut"]) for line in out] == [([0, 1, 2], "size"), ([3, 4], "flush")]
    for size in ("8", "8B"):
        assert [line["events"] for line in parsed(run(lines, "--max-bytes", size))] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("late", "members"),
    [
        ("reject", [("batch", [1]), ("reject", 2)]),
        ("side", [("batch", [1]), ("side", [2])]),
        ("amend", [("batch", [1]), ("amendment", [1, 2])]),
    ],
)
def test_late_events_are_refused_or_batched_apart_or_amend(late, members):
    lines = lines_of(spelled("a:10@12 b:20@60"))
    out = parsed(run(lines, "--late", late, *([] if late == "reject" else ["--grace", "50"])))
    kinds = [(line.get("kind", "reject" if "rejected" in line else "batch")) for line in out]
    assert list(zip(kinds, [line.get("events", 2) for line in out], strict=True)) == members
    assert [line["amends"] for line in out if "amends" in line] == ([[out[0]["batch"]]] if late == "amend" else [])


def test_a_cap_on_bytes_needs_the_size_of_every_line():
    answer = answer_to(GOOD, "--max-bytes", "8")
    assert answer.code == 2
    assert "line 1: size is missing" in answer.err


def test_rules_that_make_no_sense_end_the_command():
    answer = answer_to(GOOD, "--window", "-5")
    assert answer.code == 2
    assert "invalid window -5" in answer.err


def test_a_missing_file_ends_the_command(tmp_path):
    answer = answer_to("", str(tmp_path / "nothing.jsonl"))
    assert answer.code == 2
    assert "nothing.jsonl" in answer.err
