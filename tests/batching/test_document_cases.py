"""The five use cases of the seed document "message-batching", under the readings of reference "batching" §3.1."""

from __future__ import annotations

import pytest

from millstream.batching import Batcher
from millstream.testing.batching_oracle import respelled, spelled

EVENTS = {
    "UC1": "a:110@120 b:122@132 c:142@150 d:152@160 e:170@190",
    "UC2": "a:110@120 b:122@132 c:142@150 d:170@190 e:190@210",
    "UC3": "a:110@120 b:120@130 c:130@140 a:140@150 a:155@170",
    "UC4": "a:110@120 b:120@130 c:130@140 d:190@210 c:130@220 e:210@240",
    "UC5": "a:110@120 b:120@130 c:130@140 a:175@190 b:200@205 d:145@215",
}

ORDER_FREE = {
    "UC1": [(181, "a:110 b:122 c:142 d:152", "window"), (241, "e:170", "window")],
    "UC2": [(181, "a:110 b:122 c:142", "window"), (241, "d:170 e:190", "window")],
    "UC3": [(160, "a:110 b:120 c:130", "conflict"), (175, "a:140", "conflict"), (226, "a:155", "window")],
    "UC4": [(181, "a:110 b:120 c:130", "window"), (261, "d:190", "window")],
    "UC5": [(181, "a:110 b:120 c:130", "window"), (246, "a:175 b:200", "window")],
}

FAITHFUL = {
    "UC1": [(180, "a:110 b:122 c:142 d:152"), (240, "e:170")],
    "UC2": [(180, "a:110 b:122 c:142"), (240, "d:170 e:190")],
    "UC3": [(150, "a:110 b:120"), (170, "c:130 a:140"), (180, "a:155")],
    "UC4": [(180, "a:110 b:120 c:130"), (260, "d:190")],
    "UC5": [(180, "a:110 b:120 c:130"), (245, "a:175 b:200")],
}

LATE = {"UC1": [], "UC2": [], "UC3": [], "UC4": [5, 6], "UC5": [6]}


def replay(batcher, events, until=1000):
    """Live, tick by tick: the clock stands at T before what is received at T; returns (tick, batch) and rejects."""
    closed, rejects = [], []
    waiting = list(events)
    for tick in range(until):
        outcomes = [batcher.advance(tick)]
        while waiting and waiting[0].received_at == tick:
            outcomes.append(batcher.receive(waiting.pop(0)))
        for batches, refused in outcomes:
            closed += [(tick, batch) for batch in batches]
            rejects += refused
    return closed, rejects


@pytest.mark.parametrize("case", EVENTS)
def test_the_order_free_batcher_gives_the_cases_at_their_times(case):
    events = spelled(EVENTS[case])
    closed, rejects = replay(Batcher(50, 20), events)
    assert [(tick, respelled(events, batch.events), batch.cut) for tick, batch in closed] == ORDER_FREE[case]
    assert all(tick == batch.closed_at for tick, batch in closed)
    assert [(reject.rejected, reject.reason) for reject in rejects] == [(number, "late") for number in LATE[case]]


@pytest.mark.parametrize("case", EVENTS)
def test_the_faithful_batcher_gives_the_cases_as_the_code_does(case):
    events = spelled(EVENTS[case])
    closed, rejects = replay(Batcher(50, 20, mode="faithful"), events)
    assert [(tick, respelled(events, batch.events)) for tick, batch in closed] == FAITHFUL[case]
    assert [(reject.rejected, reject.reason) for reject in rejects] == [(number, "late") for number in LATE[case]]


@pytest.mark.parametrize("case", EVENTS)
def test_midpoint_cuts_give_the_batches_of_the_code(case):
    events = spelled(EVENTS[case])
    closed, _ = replay(Batcher(50, 20, conflict_cut="midpoint"), events)
    assert [respelled(events, batch.events) for _, batch in closed] == [members for _, members in FAITHFUL[case]]


def test_the_undecided_message_of_uc5_is_batched_by_sorting_when_it_is_not_late():
    events = spelled(EVENTS["UC5"])
    closed, rejects = replay(Batcher(50, 70), events)
    assert rejects == []
    assert [respelled(events, batch.events) for _, batch in closed] == ["a:110 b:120 c:130 d:145", "a:175 b:200"]
