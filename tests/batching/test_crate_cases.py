"""The unit cases of thin-edge's batcher crate (reference "batching" §3.2): the oracle, and how far midpoint agrees."""

from __future__ import annotations

import msgspec
import pytest

from millstream.batching import Batcher, Reject
from millstream.testing.batching_oracle import respelled, spelled

# number: (window, max delay, events, flush at, batches as (closed at, members), ids that are late, ids that are copies)
CASES = {
    1: (50, 20, "a:0@1", None, [(70, "a:0")], [], []),
    2: (50, 20, "a:0@1 b:10@11", None, [(70, "a:0 b:10")], [], []),
    3: (50, 50, "a:0@1 b:10@11", None, [(100, "a:0 b:10")], [], []),
    4: (50, 50, "b:10@11 a:5@25", None, [(60, "a:5"), (110, "b:10")], [], []),
    5: (50, 20, "a:0@1 a:10@11", None, [(25, "a:0"), (70, "a:10")], [], []),
    6: (50, 20, "a:0@1 a:10@11 b:2@12", None, [(25, "a:0 b:2"), (70, "a:10")], [], []),
    7: (50, 20, "a:0@1 a:10@11 b:9@12", None, [(25, "a:0"), (70, "b:9 a:10")], [], []),
    8: (50, 20, "", 100, [], [], []),
    9: (50, 20, "a:0@1 b:10@11", 20, [(20, "a:0 b:10")], [], []),
    10: (50, 20, "a:0@1 b:3@4 a:10@11", 20, [(20, "a:0 b:3"), (20, "a:10")], [], []),
    11: (
        50,
        20,
        "b:120@125 a:115@135 c:145@150 d:160@165 e:175@189 g:240@250 f:215@260",
        None,
        [(140, "a:115"), (190, "b:120 c:145 d:160"), (245, "e:175"), (310, "g:240")],
        [7],
        [],
    ),
    12: (
        50,
        20,
        "a:120@130 b:130@140 c:145@150 d:180@189 e:190@210",
        None,
        [(190, "a:120 b:130 c:145"), (250, "d:180 e:190")],
        [],
        [],
    ),
    13: (
        50,
        20,
        "a:120@125 b:125@140 a:140@150 c:150@170 a:170@180",
        None,
        [(150, "a:120 b:125"), (180, "a:140 c:150"), (190, "a:170")],
        [],
        [],
    ),
    14: (
        50,
        20,
        "a:120@130 b:130@140 c:140@150 c:140@160 c:140@175 d:190@210 c:140@220 e:210@230",
        None,
        [(190, "a:120 b:130 c:140"), (260, "d:190 e:210")],
        [5, 7],
        [4],
    ),
    15: (
        50,
        20,
        "a:120@130 b:130@140 c:140@150 a:180@189 b:200@205 d:145@215",
        None,
        [(190, "a:120 b:130 c:140"), (250, "a:180 b:200")],
        [6],
        [],
    ),
}

MIDPOINT = {
    1: [(71, "window")],
    2: [(71, "window")],
    3: [(101, "window")],
    5: [(31, "conflict"), (81, "window")],
    6: [(31, "conflict"), (81, "window")],
    7: [(31, "conflict"), (80, "window")],
    8: [],
    9: [(20, "flush")],
    10: [(20, "conflict"), (20, "flush")],
    12: [(191, "window"), (251, "window")],
    13: [(161, "conflict"), (191, "conflict"), (241, "window")],
    14: [(191, "window"), (261, "window")],
    15: [(191, "window"), (251, "window")],
}
"""When and why the order-free batches of each case close (reference "batching", §6.4): a window is over one tick after
its last, a midpoint is certain one tick after the repeating event, both plus the delay; what a cut leaves over begins a
window of its own. The code closes at the end of the window, or at the midpoint, plus the delay."""

INVERTED = {4, 11}
"""Cases in which an earlier event arrives after a later one: the code's answer depends on that, midpoint's does not."""


def run(batcher, events, flush_at):
    """The crate's harness: what is due at T happens before the event at T. A flush counts as closing at its time."""
    batches, rejects = [], []
    for event in events:
        for outcome in (batcher.advance(event.received_at), batcher.receive(event)):
            batches += [(batch.closed_at, batch) for batch in outcome.batches]
            rejects += outcome.rejects
    last = batcher.flush() if flush_at is not None else batcher.advance(10_000)
    batches += [(flush_at if batch.closed_at is None else batch.closed_at, batch) for batch in last.batches]
    return batches, rejects + last.rejects


@pytest.mark.parametrize("number", CASES)
def test_faithful_gives_every_case_of_the_crate(number):
    window, max_delay, text, flush_at, expected, late, copies = CASES[number]
    events = spelled(text)
    batches, rejects = run(Batcher(window, max_delay, mode="faithful"), events, flush_at)
    closed = [(closed_at, respelled(events, batch.events)) for closed_at, batch in batches]
    assert sorted(closed) == sorted(expected)
    assert [reject.rejected for reject in rejects if reject.reason == "late"] == late
    assert [reject.rejected for reject in rejects if reject.reason == "duplicate"] == copies
    assert len(rejects) == len(late) + len(copies)


@pytest.mark.parametrize("number", CASES.keys() - INVERTED)
def test_midpoint_gives_every_case_that_arrives_in_order(number):
    window, max_delay, text, flush_at, expected, late, copies = CASES[number]
    events = spelled(text)
    batches, rejects = run(Batcher(window, max_delay, conflict_cut="midpoint"), events, flush_at)
    members = [respelled(events, batch.events) for _, batch in batches]
    assert members == [members for _, members in expected]
    assert [(closed_at, batch.cut) for closed_at, batch in batches] == MIDPOINT[number]
    refused = [(number, "late") for number in late] + [(number, "duplicate") for number in copies]
    assert sorted((reject.rejected, reject.reason) for reject in rejects) == sorted(refused)


@pytest.mark.parametrize("number", INVERTED)
def test_midpoint_gives_an_inverted_case_what_the_code_gives_it_in_order(number):
    window, max_delay, text, _, inverted, late, _ = CASES[number]
    events = spelled(text)
    batches, rejects = run(Batcher(window, max_delay, conflict_cut="midpoint"), events, None)
    punctual = sorted((event for event in events if event.id not in late), key=lambda event: event.event_time)
    in_order = [msgspec.structs.replace(event, received_at=event.event_time) for event in punctual]
    expected, _ = run(Batcher(window, max_delay, mode="faithful"), in_order, None)
    members = [respelled(events, batch.events) for _, batch in batches]
    assert members == [respelled(events, batch.events) for _, batch in expected]
    assert members != [members for _, members in inverted]
    assert [(reject.rejected, reject.reason) for reject in rejects] == [(number, "late") for number in late]


@pytest.mark.parametrize(
    ("text", "members", "copies"),
    [
        ("1:40@40 2:60@60", ["1:40 2:60"], 0),
        ("1:40@40 1:60@60", ["1:40", "1:60"], 0),
        ("1:40@40 1:40@60", ["1:40"], 1),
    ],
    ids=["two keys share a batch", "one key twice is split", "a copy is ignored"],
)
@pytest.mark.parametrize("mode", ["faithful", "order-free"])
def test_the_crates_batch_cases_hold(text, members, copies, mode):
    batcher, events = Batcher(100, 100, mode=mode), spelled(text)
    first, last = batcher.receive_many(events), batcher.flush()
    assert sorted(respelled(events, batch.events) for batch in last.batches) == members
    assert len(first.rejects + last.rejects) == copies


def test_faithful_flushes_the_newest_batch_first():
    batcher, events = Batcher(50, 20, mode="faithful"), spelled("a:0@1 b:3@4 a:10@11")
    batcher.receive_many(events)
    assert [respelled(events, batch.events) for batch in batcher.flush().batches] == ["a:10", "a:0 b:3"]


def test_faithful_can_go_on_after_a_flush():
    batcher, events = Batcher(50, 20, mode="faithful"), spelled("a:0@1 b:3@4")
    batcher.receive(events[0])
    batcher.flush()
    assert batcher.receive(events[1]) == ([], [])
    assert [batch.events for batch in batcher.advance(100).batches] == [(2,)]


def test_faithful_loses_no_event_when_clashing_events_are_one_tick_apart():
    batcher, events = Batcher(50, 20, mode="faithful"), spelled("a:10@11 b:11@12 a:11@12")
    batcher.receive_many(events)
    assert sorted(batch.events for batch in batcher.advance(100).batches) == [(1,), (3, 2)]


def test_a_copy_on_a_border_comes_out_twice_in_the_code_and_once_by_the_order_free_rule():
    """Redelivered under QoS 1: both halves of a split batch hold their common border, and only one has the event."""
    events = spelled("a:0@1 b:5@6 a:10@11 b:5@12")
    batches, rejects = run(Batcher(50, 20, mode="faithful"), events, None)
    assert [batch.events for _, batch in batches] == [(1, 4), (2, 3)]
    assert rejects == []
    for cut in ("midpoint", "at_event"):
        batches, rejects = run(Batcher(50, 20, conflict_cut=cut), events, None)
        assert sorted(number for _, batch in batches for number in batch.events) == [1, 2, 3]
        assert rejects == [Reject(4, "duplicate")]


def test_faithful_depends_on_arrival_where_order_free_does_not():
    in_order, swapped = spelled("a:5@10 b:10@11"), spelled("b:10@11 a:5@25")

    def members(batcher, events):
        batches = [*batcher.receive_many(events).batches, *batcher.flush().batches]
        return sorted(respelled(events, batch.events) for batch in batches)

    assert members(Batcher(50, 50, mode="faithful"), in_order) != members(Batcher(50, 50, mode="faithful"), swapped)
    assert members(Batcher(50, 50), in_order) == members(Batcher(50, 50), swapped) == ["a:5 b:10"]


def test_faithful_moves_a_member_that_stands_exactly_in_the_middle():
    batcher, events = Batcher(50, 20, mode="faithful"), spelled("a:0@1 b:5@6 a:10@11")
    batcher.receive_many(events)
    assert [respelled(events, batch.events) for batch in batcher.advance(100).batches] == ["a:0", "b:5 a:10"]


def test_faithful_closes_a_batch_that_ends_between_two_ticks_on_the_later_one():
    batcher, events = Batcher(50, 20, mode="faithful"), spelled("a:0@1 a:11@12")
    batcher.receive_many(events)
    assert batcher.advance(25) == ([], [])
    assert [(batch.events, batch.closed_at) for batch in batcher.advance(26).batches] == [((1,), 26)]
