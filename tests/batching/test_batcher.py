"""The batcher's calls one by one: what each returns, refuses and promises."""

from __future__ import annotations

import doctest
import itertools
import subprocess
import sys
from typing import Any

import msgspec
import pytest

import millstream.batching.batcher
from millstream.batching import BatchConfig, Batcher, BoundBrokenError, Event, FlushedError, Reject, SnapshotError
from millstream.batching.source_buffer import SourceBuffer
from millstream.testing.batching_oracle import plain_batches, respelled, spelled


def ids(outcome):
    return [batch.events for batch in outcome.batches]


def test_the_example_in_the_class_holds():
    assert doctest.testmod(millstream.batching.batcher, extraglobs={"Event": Event}).failed == 0


def test_receive_alone_closes_nothing_however_far_the_records_reach():
    batcher = Batcher(50, 20)
    assert batcher.receive_many(spelled("a:0@0 a:1000@1000 a:9000@9000")) == ([], [])
    assert ids(batcher.advance(9000)) == [(1,), (2,)]


def test_a_delay_and_a_lead_of_exactly_the_limit_are_taken():
    batcher = Batcher(50, 20, leap=5)
    _, rejects = batcher.receive_many(spelled("a:80@100 b:79@100 c:105@100 d:106@100"))
    assert rejects == [Reject(2, "late"), Reject(4, "future")]


def test_a_window_includes_both_of_its_ends():
    batcher = Batcher(50, 20)
    batcher.receive_many(spelled("a:0@0 b:50@50 c:51@51"))
    assert ids(batcher.flush()) == [(1, 2), (3,)]


def test_a_window_of_zero_batches_instants():
    batcher = Batcher(0, 5)
    batcher.receive_many(spelled("a:1@1 b:1@2 a:2@2"))
    assert ids(batcher.flush()) == [(1, 2), (3,)]


def test_an_instant_stays_together_when_one_of_its_keys_repeats():
    batcher = Batcher(50, 20)
    batcher.receive_many(spelled("a:0@0 b:10@10 a:10@10 c:10@12"))
    assert ids(batcher.flush()) == [(1,), (3, 2, 4)]


def test_a_repeated_key_that_comes_last_closes_the_batch_in_that_very_call():
    batcher, events = Batcher(50, 20), spelled("a:110@120 a:140@160")
    batcher.receive(events[0])
    assert batcher.advance(160) == ([], [])
    batches, _ = batcher.receive(events[1])
    assert [(batch.events, batch.closed_at) for batch in batches] == [((1,), 160)]


def sized(text, *sizes):
    return [msgspec.structs.replace(event, size=size) for event, size in zip(spelled(text), sizes, strict=True)]


def test_an_instant_that_does_not_fit_stays_together_in_the_next_batch():
    batcher = Batcher(50, 20, max_count=3)
    batcher.receive_many(spelled("a:0@0 b:1@1 c:2@2 d:2@2 e:3@3"))
    batches = [*batcher.advance(23).batches, *batcher.flush().batches]
    assert [(b.events, b.cut, b.closed_at) for b in batches] == [((1, 2), "size", 23), ((3, 4, 5), "flush", None)]


def test_only_an_instant_that_exceeds_the_cap_by_itself_is_split_in_the_order_of_its_keys():
    batcher = Batcher(50, 20, max_count=2)
    batcher.receive_many(spelled("z:0@0 d:5@5 b:5@6 c:5@7 a:5@8 e:5@9 f:9@9"))
    batches = batcher.flush().batches
    assert [batch.events for batch in batches] == [(1,), (5, 3), (4, 2), (6, 7)]


def test_a_record_larger_than_the_cap_on_bytes_is_a_batch_by_itself():
    batcher = Batcher(50, 20, max_bytes=10)
    batcher.receive_many(sized("a:0@0 b:1@1 c:2@2 d:3@3 e:4@4", 4, 6, 11, 5, 5))
    assert ids(batcher.flush()) == [(1, 2), (3,), (4, 5)]


def test_copies_do_not_count_towards_the_caps():
    batcher = Batcher(50, 20, max_count=2)
    batcher.receive_many(spelled("a:0@0 a:0@1 a:0@2 b:1@2"))
    assert ids(batcher.flush()) == [(1, 4)]


def test_members_that_a_midpoint_cut_moves_on_make_way_for_an_instant_they_leave_no_room_for():
    batcher = Batcher(50, 20, conflict_cut="midpoint", max_count=3)
    batcher.receive_many(spelled("a:0@0 b:6@6 c:7@7 a:10@10 d:10@10"))
    batches = batcher.flush().batches
    assert [(batch.events, batch.cut) for batch in batches] == [((1,), "conflict"), ((2, 3), "size"), ((4, 5), "flush")]


def test_sources_are_batched_apart():
    batcher = Batcher(50, 20)
    batcher.receive_many([Event(1, "x", "a", 0, 0), Event(2, "y", "a", 10, 10)])
    assert [(batch.source, batch.events) for batch in batcher.advance(200).batches] == [("x", (1,)), ("y", (2,))]


def test_batches_of_one_call_come_by_their_closing_time_whichever_source_they_are_of():
    batcher = Batcher(50, 20)
    batcher.receive_many([Event(1, "z", "a", 0, 0), Event(2, "y", "a", 5, 5), Event(3, "z", "a", 60, 60)])
    batcher.receive(Event(4, "y", "a", 57, 57))
    assert [batch.closed_at for batch in batcher.advance(200).batches] == [71, 76, 128, 131]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_p5_determinism_of_copies_the_lowest_digest_stays_then_the_first_received_then_the_lowest_id(order):
    events = spelled("a:10@14#bb a:10@13#aa a:10@12#aa a:10@12#aa")
    batcher = Batcher(50, 20)
    batcher.receive_many([events[n] for n in order])
    batches, rejects = batcher.advance(100)
    assert [batch.events for batch in batches] == [(3,)]
    assert sorted(rejects, key=lambda reject: reject.rejected) == [
        Reject(1, "conflicting_duplicate"),
        Reject(2, "duplicate"),
        Reject(4, "duplicate"),
    ]


def test_a_copy_of_a_record_that_is_out_already_is_late_and_never_out_again():
    batcher, events = Batcher(50, 20), spelled("a:10@12 a:60@62 a:10@30 a:10@80")
    batcher.receive_many(events[:3])
    first = batcher.advance(80)
    assert ids(first) == [(1,)]
    assert first.rejects == [Reject(3, "duplicate")]
    assert batcher.receive(events[3]).rejects == [Reject(4, "late")]


def test_a_copy_that_is_late_is_late():
    batcher = Batcher(50, 20)
    assert batcher.receive_many(spelled("a:10@31 a:10@12")).rejects == [Reject(1, "late")]


def test_a_record_from_before_the_clock_is_refused_and_none_of_its_call_is_taken():
    batcher, events = Batcher(50, 20), spelled("a:100@110 b:99@109")
    batcher.advance(110)
    with pytest.raises(
        BoundBrokenError, match=r"record 2 of source '' has the receive time 109.*already advanced to 110"
    ):
        batcher.receive_many(events)
    batcher.receive(events[0])
    assert ids(batcher.flush()) == [(1,)]


def test_the_clock_never_goes_back():
    batcher = Batcher(50, 20)
    assert batcher.clock is None
    batcher.advance(100)
    batcher.advance(50)
    assert batcher.clock == 100


@pytest.mark.parametrize("mode", ["order-free", "faithful"])
def test_a_second_flush_returns_nothing(mode):
    batcher = Batcher(50, 20, mode=mode)
    batcher.receive_many(spelled("a:1@1"))
    assert len(batcher.flush().batches) == 1
    assert batcher.flush() == ([], [])


def test_after_its_flush_an_order_free_batcher_takes_nothing_more():
    batcher = Batcher(50, 20)
    batcher.flush()
    with pytest.raises(FlushedError):
        batcher.receive(spelled("a:1@1")[0])
    with pytest.raises(FlushedError):
        batcher.advance(5)


def test_a_flush_says_why_each_batch_ended_but_names_no_time():
    batcher = Batcher(50, 20)
    batcher.receive_many(spelled("a:0@0 a:10@10 b:70@70"))
    batches, _ = batcher.flush()
    assert [(batch.cut, batch.closed_at) for batch in batches] == [
        ("conflict", None),
        ("window", None),
        ("flush", None),
    ]


def test_midpoint_moves_the_members_at_or_after_the_middle():
    events = spelled("a:0@0 b:4@4 c:5@5 d:6@6 a:10@10")
    batcher = Batcher(50, 20, conflict_cut="midpoint")
    batcher.receive_many(events)
    members = [respelled(events, batch.events) for batch in batcher.flush().batches]
    assert members == ["a:0 b:4", "c:5 d:6 a:10"]


def test_midpoint_cuts_once_at_the_latest_middle_when_several_keys_repeat():
    events = spelled("a:0@0 b:8@8 a:10@10 b:10@10")
    for order in (events, events[::-1]):
        batcher = Batcher(50, 20, conflict_cut="midpoint")
        batcher.receive_many(order)
        assert [respelled(events, batch.events) for batch in batcher.flush().batches] == ["a:0 b:8", "a:10 b:10"]


def test_midpoint_parts_records_one_tick_apart():
    batcher = Batcher(50, 20, conflict_cut="midpoint")
    batcher.receive_many(spelled("a:10@10 a:11@11 a:12@12"))
    assert ids(batcher.flush()) == [(1,), (2,), (3,)]


def test_quiet_sources_are_forgotten_once_their_batches_are_out():
    batcher = Batcher(50, 20)
    empty = len(batcher.snapshot())
    batcher.receive_many([Event(n, f"source {n}", "a", n, n) for n in range(1000)])
    assert len(batcher.advance(5000).batches) == 1000
    assert len(batcher.snapshot()) < empty + 8


@pytest.mark.parametrize("mode", ["order-free", "faithful"])
def test_p5_determinism_a_snapshot_goes_on_in_another_process(mode, tmp_path):
    events = spelled("a:110@120 b:120@130 c:130@140 a:140@150 b:141@151 a:155@170 a:155@171#x")
    batcher = Batcher(50, 20, mode=mode)
    first = batcher.receive_many(events[:4])
    (tmp_path / "state").write_bytes(batcher.snapshot())
    script = (
        "import sys, pathlib\n"
        "from millstream.batching import Batcher\n"
        "from millstream.batching.json_lines import read_events, write_line\n"
        "batcher = Batcher.restore(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "for _, event in read_events(sys.stdin.buffer):\n"
        "    for item in sum(batcher.receive(event), []): sys.stdout.buffer.write(write_line(item))\n"
        "for item in sum(batcher.flush(), []): sys.stdout.buffer.write(write_line(item))\n"
    )
    lines = "".join(
        f'{{"id":{e.id},"key":"{e.key}","event_time":{e.event_time},"received_at":{e.received_at},"digest":"{e.digest}"}}\n'
        for e in events[4:]
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state")], input=lines, capture_output=True, text=True, check=True
    )
    undisturbed = Batcher(50, 20, mode=mode)
    outcomes = [undisturbed.receive_many(events), undisturbed.flush()]
    every = [batch.batch for outcome in outcomes for batch in outcome.batches]
    assert all(name in child.stdout for name in every[len(first.batches) :])
    assert [batch.batch for batch in first.batches] == every[: len(first.batches)]
    assert child.stdout.count("\n") == len(every) - len(first.batches) + sum(len(o.rejects) for o in outcomes)


@pytest.fixture
def snapshot():
    batcher = Batcher(50, 20)
    batcher.receive_many(spelled("a:110@120 b:120@130 c:130@140 a:140@150"))
    batcher.advance(145)
    return batcher.snapshot()


def test_a_snapshot_under_the_same_rules_is_taken(snapshot):
    assert Batcher.restore(snapshot, BatchConfig(50, 20)).snapshot() == snapshot


def test_a_snapshot_under_other_rules_is_refused(snapshot):
    with pytest.raises(SnapshotError, match=r"window=50 .*window=60"):
        Batcher.restore(snapshot, BatchConfig(60, 20))


def test_a_snapshot_of_another_version_is_refused(snapshot):
    with pytest.raises(SnapshotError, match=r"version 9, .*: upgrade Millstream"):
        Batcher.restore(snapshot[:4] + b"\x09" + snapshot[5:])


def test_a_snapshot_with_any_flipped_bit_or_missing_end_is_refused(snapshot):
    for position in range(len(snapshot)):
        damaged = bytearray(snapshot)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(SnapshotError):
            Batcher.restore(bytes(damaged))
        with pytest.raises(SnapshotError):
            Batcher.restore(snapshot[:position])


def test_a_snapshot_remembers_a_flush():
    batcher = Batcher(50, 20)
    batcher.flush()
    with pytest.raises(FlushedError):
        Batcher.restore(batcher.snapshot()).receive(spelled("a:1@1")[0])


def test_an_id_beyond_64_bits_cannot_be_put_into_a_snapshot():
    batcher = Batcher(50, 20)
    batcher.receive(Event(2**70, "", "a", 1, 1))
    with pytest.raises(SnapshotError, match="64-bit"):
        batcher.snapshot()


def test_times_before_the_epoch_and_in_nanoseconds_are_exact():
    for offset in (-(2**62), 2**62, 1_784_550_896_123_456_789):
        events = [
            Event(e.id, "", e.key, e.event_time + offset, e.received_at + offset)
            for e in spelled("a:0@5 b:50@50 c:51@60")
        ]
        batcher = Batcher(50, 20)
        batcher.receive_many(events)
        batches, _ = Batcher.restore(batcher.snapshot()).flush()
        assert batches == plain_batches(events, BatchConfig(50, 20))[0]
        assert [batch.events for batch in batches] == [(1, 2), (3,)]


def test_small_steps_over_repeated_keys_look_at_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    window = SourceBuffer._window

    def counted(buffer: SourceBuffer) -> Any:
        found = window(buffer)
        looked.append(len(found[0]))
        return found

    monkeypatch.setattr(SourceBuffer, "_window", counted)
    batcher, batches = Batcher(window=3000, max_delay=500), 0
    for first in range(0, 4000, 10):
        events = [Event(n, "a", f"key {n % 50}", n, n, digest=str(n)) for n in range(first, first + 10)]
        batches += len(batcher.receive_many(events).batches) + len(batcher.advance(first + 10).batches)
    assert batches == 70
    assert sum(looked) <= 4000
