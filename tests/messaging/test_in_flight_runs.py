"""Runs of ids, and a group's progress that is made of them, do what an object for each message did."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.messaging.broker.delivery.group_delivery import RENEW_STEP, GroupDelivery
from millstream.messaging.broker.delivery.id_ranges import merge_ranges, missing_ids, to_ranges
from millstream.messaging.broker.delivery.in_flight_runs import InFlightRun, InFlightRuns, LeaseTerms
from millstream.messaging.broker.names import read_handle, read_handles, write_handle, write_handles
from millstream.messaging.broker.storage import broker_state
from millstream.messaging.broker.storage.broker_state import BrokerState, _flight, delivery_snapshot_messages
from millstream.messaging.broker.storage.journal_events import (
    DeliverySnapshot,
    InFlightSnapshot,
    MessagesLeased,
    TopicMade,
    event_message,
    read_event,
)
from suite.sizes import machine
from support.per_message_delivery import MessageInFlight, PerMessageDelivery

IDS = st.integers(1, 24)
RANGES = st.tuples(IDS, st.integers(0, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def delivery_snapshot(group: str, topic: str, delivery: GroupDelivery) -> DeliverySnapshot:
    """What :func:`delivery_snapshot_messages` says, as one event with an entry for each message in flight."""
    pointer, ahead, runs = delivery.keep()
    flights = [_flight(run, number) for run in runs for number in range(run.first, run.last + 1)]
    return DeliverySnapshot(group, topic, pointer, ahead, flights)


class RunsMachine(RuleBasedStateMachine):
    """Runs against a dict with an entry for each message."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = InFlightRuns()
        self.messages: dict[int, tuple[int, LeaseTerms, bool]] = {}
        self.token = 0

    @rule(ids=RANGES, attempt_id=st.sampled_from(["", "a", "b"]))
    def lease(self, ids: tuple[int, int], attempt_id: str) -> None:
        self.token += 1
        terms = LeaseTerms(self.token, 0, 0, attempt_id=attempt_id)
        self.runs.lease(*ids, terms)
        for number in range(ids[0], ids[1] + 1):
            attempts, before, _ = self.messages.get(number, (0, terms, True))
            is_repeated = attempts > 0 and attempt_id != "" and before.attempt_id == attempt_id
            self.messages[number] = attempts + (not is_repeated), terms, True

    @rule(ids=RANGES)
    def remove(self, ids: tuple[int, int]) -> None:
        self.runs.remove(*ids)
        for number in range(ids[0], ids[1] + 1):
            self.messages.pop(number, None)

    @rule(ids=RANGES, attempts=st.integers(1, 3))
    def put(self, ids: tuple[int, int], attempts: int) -> None:
        terms = LeaseTerms(0, 0, 0)
        self.runs.put(InFlightRun(*ids, attempts, terms, away=False))
        self.messages.update((number, (attempts, terms, False)) for number in range(ids[0], ids[1] + 1))

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def separate(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.messages)))
        run = self.runs.separate(number)
        assert (run.first, run.last) == (number, number)
        assert run is self.runs.find(number)
        run.away = not run.away
        self.messages[number] = (*self.messages[number][:2], run.away)

    @invariant()
    def they_have_the_same_messages(self) -> None:
        found = [(number, run) for run in self.runs for number in range(run.first, run.last + 1)]
        assert [number for number, _ in found] == sorted(self.messages)
        assert {number: (run.attempts, run.terms, run.away) for number, run in found} == self.messages
        assert self.runs.messages == len(self.messages)
        assert all(run.last >= run.first for run in self.runs)

    @rule(ids=RANGES)
    def find(self, ids: tuple[int, int]) -> None:
        within = list(self.runs.within(*ids))
        assert within == [run for run in self.runs if run.first <= ids[1] and ids[0] <= run.last]
        assert (self.runs.find(ids[0]) is None) == (ids[0] not in self.messages)


class ComparedDelivery(RuleBasedStateMachine):
    """A group's progress in runs against the same with an object for each message."""

    fifo = False

    def __init__(self) -> None:
        super().__init__()
        self.delivery = GroupDelivery(fifo=self.fifo)
        self.oracle = PerMessageDelivery()
        self.now = 1
        self.token = 0
        self.connections = {"up"}

    @rule(duration=st.sampled_from([1, 5, RENEW_STEP, 3 * RENEW_STEP]))
    def wait(self, duration: int) -> None:
        self.now += duration

    @rule(is_up=st.booleans())
    def expire(self, is_up: bool) -> None:
        for each in (self.delivery, self.oracle):
            each.expire(self.now, lambda _, connection: is_up and connection == "up")

    @rule(client=st.sampled_from("cd"), duration=st.integers(0, 5))
    def expire_soon(self, client: str, duration: int) -> None:
        for each in (self.delivery, self.oracle):
            each.expire_soon(client, self.now + duration)

    @rule(
        count=st.integers(1, 12),
        skip=st.integers(0, 2),
        duration=st.sampled_from([1, 5, RENEW_STEP]),
        client=st.sampled_from("cd"),
        renew=st.booleans(),
        attempt_id=st.sampled_from(["", "a", "b"]),
        consecutive=st.booleans(),
    )
    def receive(
        self, count: int, skip: int, duration: int, client: str, renew: bool, attempt_id: str, consecutive: bool
    ) -> None:
        if attempt_id:
            self.delivery.reclaim_attempt(attempt_id)
            self.oracle.reclaim_attempt(attempt_id)
        skipped = range(self.oracle.next, self.oracle.next + skip)
        new = [number for number in skipped if self.delivery.is_new(number)]
        ids = self._ordered(count, consecutive) if self.fifo else self._anywhere(count, skip)
        self.token += 1
        self.delivery.finish(to_ranges(new))
        self.oracle.finish(new)
        ids = sorted(set(ids) - set(new))
        terms = LeaseTerms(self.token, self.now + duration, self.now, client, renew, attempt_id)
        self.delivery.lease(to_ranges(ids), terms)
        self.oracle.lease(ids, terms)
        if renew:
            self.delivery.set_connection(to_ranges(ids), "up")
            for number in ids:
                self.oracle.flights[number].connection = "up"

    def _anywhere(self, count: int, skip: int) -> list[int]:
        ids = self.delivery.returning(count)
        assert ids == self.oracle.returning(count)
        number = self.oracle.next + skip
        while len(ids) < count:
            if self.delivery.is_new(number):
                ids.append(number)
            number += 1
        self.delivery.next = self.oracle.next = number
        return ids

    def _ordered(self, count: int, consecutive: bool) -> list[int]:
        for number in range(self.oracle.next, self.oracle.next + count):
            for each in (self.delivery, self.oracle):
                each.enqueue(number, "xyz"[number % 3])
        ids = self.delivery.next_in_order(count, consecutive=consecutive)
        assert ids == self.oracle.next_in_order(count, consecutive=consecutive)
        return ids

    @precondition(lambda self: not self.fifo)
    @rule(count=st.integers(1, 5))
    def return_unused(self, count: int) -> None:
        ids = self.delivery.returning(count)
        assert ids == self.oracle.returning(count)
        self.delivery.return_unused(to_ranges(ids))
        self.oracle.waiting.update(ids)

    @rule(ids=RANGES, data=st.data())
    def acknowledge(self, ids: tuple[int, int], data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted({0, *(flight.token for flight in self.oracle.flights.values())})))
        held = self.delivery.held(*ids, token, self.now)
        numbers = [n for n in range(ids[0], ids[1] + 1) if self.oracle.is_lease_current(n, token, self.now)]
        assert merge_ranges(held) == to_ranges(numbers)
        assert [*missing_ids(*ids, held)] == [n for n in range(ids[0], ids[1] + 1) if n not in numbers]
        self.delivery.finish(held)
        self.oracle.finish(numbers)

    @precondition(lambda self: self.oracle.flights)
    @rule(data=st.data())
    def acknowledge_all_of_a_lease(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.oracle.flights)))
        token = self.oracle.flights[number].token
        numbers = [n for n in sorted(self.oracle.flights) if self.oracle.is_lease_current(n, token, self.now)]
        self.delivery.finish(to_ranges(numbers))
        self.oracle.finish(numbers)

    @precondition(lambda self: self.oracle.flights)
    @rule(data=st.data(), duration=st.integers(0, 5))
    def hide(self, data: st.DataObject, duration: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.oracle.flights)))
        if self.oracle.is_lease_current(number, self.oracle.flights[number].token, self.now):
            self.token += 1
            for each in (self.delivery, self.oracle):
                each.hide(number, self.token, self.now + duration)

    @rule(next_id=IDS)
    def reset_offset(self, next_id: int) -> None:
        for each in (self.delivery, self.oracle):
            each.reset_offset(next_id)

    @rule()
    def restart_from_a_snapshot(self) -> None:
        state = BrokerState()
        state.apply(TopicMade("t", "FIFO" if self.fifo else "NORMAL", 1), 1)
        state.apply(self._snapshot(), 2)
        state.end_recovery(self.now)
        self.delivery = state.delivery("g", "t")
        self.oracle.end_recovery(self.now)

    def _snapshot(self) -> DeliverySnapshot:
        """The progress as it is written and read; it has an entry for each message."""
        (message,) = delivery_snapshot_messages("g", "t", self.delivery)
        assert message == event_message(delivery_snapshot("g", "t", self.delivery))
        event = read_event(message)
        assert isinstance(event, DeliverySnapshot)
        assert event.flights == [_kept(*each) for each in sorted(self.oracle.flights.items())]
        return event

    @invariant()
    def they_are_alike(self) -> None:
        self._snapshot()
        oracle, delivery = self.oracle, self.delivery
        assert delivery.next_due() == oracle.next_due()
        assert delivery.next == oracle.next
        assert delivery.last_seen == oracle.seen_to
        assert all(number in delivery.done for number in oracle.done)
        assert delivery.lag(1, oracle.seen_to) == oracle.lag(oracle.seen_to)
        assert delivery.in_flight.messages == len(oracle.flights)
        connections = {
            number: run.terms.connection for run in delivery.in_flight for number in range(run.first, run.last + 1)
        }
        assert connections == {number: flight.connection for number, flight in oracle.flights.items()}


class ComparedOrderedDelivery(ComparedDelivery):
    """The same of a topic with order."""

    fifo = True


def _kept(number: int, flight: MessageInFlight) -> InFlightSnapshot:
    members = {name: value for name, value in vars(flight).items() if name != "connection"}
    return InFlightSnapshot(id=number, **members)


TestRuns = RunsMachine.TestCase
TestComparedDelivery = ComparedDelivery.TestCase
TestComparedOrderedDelivery = ComparedOrderedDelivery.TestCase


@pytest.fixture(autouse=True, scope="module")
def _schedules() -> None:
    schedules = machine(ci=60, long=1000, steps=40)
    TestRuns.settings = TestComparedDelivery.settings = TestComparedOrderedDelivery.settings = schedules


def runs_of(delivery: GroupDelivery) -> Sequence[tuple[int, int]]:
    return [(run.first, run.last) for run in delivery.in_flight]


def test_messages_that_stay_alike_are_one_run() -> None:
    delivery = GroupDelivery()
    delivery.lease([(1, 1000)], LeaseTerms(1, until=30, at=0))
    assert runs_of(delivery) == [(1, 1000)]
    assert len(delivery._timers) == 1
    delivery.finish([(1, 10), (991, 1000)])
    assert runs_of(delivery) == [(11, 990)]
    delivery.hide(500, 2, 20)
    assert runs_of(delivery) == [(11, 499), (500, 500), (501, 990)]
    delivery.expire(30, lambda _client, _connection: False)
    delivery.lease(to_ranges(delivery.returning(1000)), LeaseTerms(3, until=60, at=30))
    assert runs_of(delivery) == [(11, 990)]
    assert delivery.attempts(500) == 2


def test_a_snapshot_makes_one_object_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    delivery, made = GroupDelivery(), list[int]()
    delivery.lease([(1, 2000)], LeaseTerms(1, until=30, at=5, client='a "client", ], [0'))
    delivery.hide(500, 2, 20)
    expected = event_message(delivery_snapshot("g", "t", delivery))
    flight = broker_state._flight
    monkeypatch.setattr(broker_state, "_flight", lambda run, number: made.append(number) or flight(run, number))
    assert list(delivery_snapshot_messages("g", "t", delivery)) == [expected]
    assert made == [1, 500, 501]


def test_a_snapshot_of_very_many_messages_in_flight_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_state, "_FLIGHTS_BYTES", 400)
    monkeypatch.setattr(broker_state, "_FLIGHTS_AT_ONCE", 5)
    delivery, state = GroupDelivery(), BrokerState()
    delivery.lease([(2, 100), (102, 110)], LeaseTerms(1, until=30, at=5, client="c"))
    delivery.hide(50, 2, 20)
    delivery.finish([(1, 1), (101, 101)])
    messages = list(delivery_snapshot_messages("g", "t", delivery))
    assert len(messages) > 3
    assert max(len(message.body) for message in messages) < 800
    for message in messages:
        state.apply(read_event(message), 1)
    read = state.delivery("g", "t")
    assert delivery_snapshot("g", "t", read) == delivery_snapshot("g", "t", delivery)
    assert (read.next_due(), read.last_seen) == (20, 110)


def test_a_snapshot_of_an_earlier_release_is_read_as_runs() -> None:
    state = BrokerState()
    alike = [InFlightSnapshot(id=n, attempts=1, until=30, token=4, away=True, client="c") for n in (8, 7, 5, 4, 6)]
    state.apply(DeliverySnapshot("g", "t", 3, [(10, 11)], alike), 1)
    delivery = state.delivery("g", "t")
    assert runs_of(delivery) == [(4, 8)]
    assert delivery.held(1, 20, 4, 29) == [(4, 8)]
    assert delivery.next_due() == 30


CONSECUTIVE = st.builds(
    lambda first, count, token: write_handles(first, count, token).decode(),
    st.integers(1, 2**60),
    st.integers(1, 40),
    st.integers(1, 15),
)
ALIKE = write_handle(1, 1)
ODD = st.sampled_from(
    [ALIKE.replace("1.0", "2.0"), ALIKE[:-1] + "x", " " * len(ALIKE), ALIKE.replace("001.", "00A."), "ß"]
)


@given(st.lists(st.one_of(CONSECUTIVE, CONSECUTIVE, CONSECUTIVE, ODD), min_size=1))
def test_handles_that_are_read_together_are_those_that_are_read_singly(parts: list[str]) -> None:
    data = "".join(parts).encode()
    count, rest = divmod(len(data), len(ALIKE))
    if rest or not count:
        return
    runs = read_handles(data, count)
    if runs is not None:
        singly = [data[row * len(ALIKE) :][: len(ALIKE)].decode() for row in range(count)]
        found = [(number, token) for first, last, token in runs for number in range(first, last + 1)]
        assert found == [read_handle(handle) for handle in singly]


def test_handles_of_messages_that_follow_one_another_are_read_as_one_run() -> None:
    assert read_handles(write_handles(7, 1000, 12), 1000) == [(7, 1006, 12)]
    both = write_handles(2**40, 20, 1) + write_handles(3, 30, 2)
    assert read_handles(both, 50) == [(2**40, 2**40 + 19, 1), (3, 32, 2)]
    every_other = b"".join(write_handles(number, 1, 1) for number in range(0, 200, 2))
    assert read_handles(every_other, 100) is None
    assert read_handles(both[:-1] + b"g", 50) is None


def test_ranges_are_merged_in_any_order() -> None:
    assert merge_ranges([(7, 9), (1, 2), (3, 3), (8, 8), (11, 12)]) == [(1, 3), (7, 9), (11, 12)]
    assert merge_ranges([]) == []


def test_what_a_topic_lost_is_cut_by_several_events_where_very_many_messages_are_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_state, "_FLIGHTS_BYTES", 400)
    monkeypatch.setattr(broker_state, "_FLIGHTS_AT_ONCE", 5)
    state = BrokerState()
    state.apply(TopicMade("t", "NORMAL", 1), 1)
    state.apply(MessagesLeased(group="g", topic="t", ids=[(1, 100)], at=1, until=2), 2)
    events = state.cut_to("t", 90)
    assert len(events) > 1
    for number, event in enumerate(events, 3):
        state.apply(event, number)
    delivery = state.delivery("g", "t")
    assert (delivery.last_seen, delivery.in_flight.messages) == (90, 90)
