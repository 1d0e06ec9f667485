"""What a group has of a topic, driven at random on a virtual clock against a plain model of it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.messaging.broker.delivery.group_delivery import (
    RENEW_LONGEST,
    RENEW_STEP,
    GroupDelivery,
)
from millstream.messaging.broker.delivery.id_ranges import to_ranges
from millstream.messaging.broker.delivery.in_flight_runs import InFlightRun, LeaseTerms
from suite.sizes import machine

GROUPS = ("a", "b", "c")


def ids_of(delivery: GroupDelivery) -> list[int]:
    """The messages that *delivery* has in flight."""
    return [number for run in delivery.in_flight for number in range(run.first, run.last + 1)]


class DeliveryMachine(RuleBasedStateMachine):
    """Every message is acknowledged once or visible again by its deadline; attempts are exact; nothing is lost."""

    fifo = False

    def __init__(self) -> None:
        super().__init__()
        self.delivery = GroupDelivery(fifo=self.fifo)
        self.now = 1_000
        self.token = 0
        self.groups: list[str] = []  # of message 1, 2, …
        self.attempts: dict[int, int] = {}
        self.away: dict[int, tuple[int, int]] = {}  # id → token, until
        self.done: set[int] = set()

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=5))
    def send(self, groups: list[str]) -> None:
        self.groups += groups

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 4), hold=st.integers(1, 30), consecutive=st.booleans())
    def receive(self, count: int, hold: int, consecutive: bool) -> None:
        self.delivery.expire(self.now, lambda _client, _connection: False)
        self.away = {number: lent for number, lent in self.away.items() if lent[1] > self.now}
        ids = self._choose(count, consecutive)
        assert len(ids) == len(set(ids)) <= count
        visible = self._visible(consecutive)
        assert set(ids) <= visible
        assert len(ids) == min(count, len(visible)) or (self.fifo and consecutive)
        assert bool(ids) == bool(visible)
        if ids:
            self._lend(ids, hold)

    def _lend(self, ids: list[int], hold: int) -> None:
        self.token += 1
        self.delivery.lease(to_ranges(sorted(ids)), LeaseTerms(self.token, self.now + hold, self.now))
        for number in ids:
            self.attempts[number] = self.attempts.get(number, 0) + 1
            assert self.delivery.attempts(number) == self.attempts[number]
            self.away[number] = self.token, self.now + hold

    def _choose(self, count: int, consecutive: bool) -> list[int]:
        if self.fifo:
            for number in range(self.delivery.next, len(self.groups) + 1):
                self.delivery.enqueue(number, self.groups[number - 1])
            return self.delivery.next_in_order(count, consecutive=consecutive)
        ids = self.delivery.returning(count)
        while len(ids) < count and self.delivery.next <= len(self.groups):
            if self.delivery.is_new(self.delivery.next):
                ids.append(self.delivery.next)
            self.delivery.next += 1
        return ids

    def _visible(self, consecutive: bool) -> set[int]:
        free = [n for n in range(1, len(self.groups) + 1) if n not in self.done and n not in self.away]
        if not self.fifo:
            return set(free)
        found: set[int] = set()
        for group in GROUPS:
            line = [n for n in range(1, len(self.groups) + 1) if self.groups[n - 1] == group and n not in self.done]
            for number in line:
                if number in self.away or (found & set(line) and not consecutive):
                    break
                found.add(number)
        return found

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.away)))
        token, until = self.away[number]
        held = self.delivery.held(number, number, token, self.now)
        assert held == ([(number, number)] if until > self.now else [])
        assert not self.delivery.held(number, number, token + 1, self.now)
        if held:
            self.delivery.finish([(number, number)])
            del self.away[number]
            self.done.add(number)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), hold=st.integers(0, 30))
    def hide(self, data: st.DataObject, hold: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.away)))
        if self.delivery.held(number, number, self.away[number][0], self.now):
            self.token += 1
            self.delivery.hide(number, self.token, self.now + hold)
            self.away[number] = self.token, self.now + hold

    @rule()
    def reset_offset(self) -> None:
        kept = self.delivery.keep()
        self.delivery = GroupDelivery(fifo=self.fifo)
        self.delivery.restore(*kept)
        self.delivery.end_recovery(self.now)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert ids_of(self.delivery) == sorted(set(self.attempts) - self.done)
        assert all(number in self.delivery.done for number in self.done)

    @invariant()
    def the_next_deadline_is_known(self) -> None:
        due = self.delivery.next_due()
        expected = min((run.terms.until for run in self.delivery.in_flight if run.away), default=None)
        assert due == expected

    def teardown(self) -> None:
        """Given time, everything that was sent is handled."""
        for _ in range(3 * len(self.groups) + 1):
            self.wait(60)
            self.receive(64, 30, False)
            for number in sorted(self.away):
                self.delivery.finish([(number, number)])
                self.done.add(number)
                del self.away[number]
        assert self.done == set(range(1, len(self.groups) + 1))


class OrderedDeliveryMachine(DeliveryMachine):
    """Besides: what may be given of a message group is its first message that is not done, or a run from there."""

    fifo = True


TestDelivery = DeliveryMachine.TestCase
TestOrderedDelivery = OrderedDeliveryMachine.TestCase


@pytest.fixture(autouse=True, scope="module")
def _schedules() -> None:
    schedules = machine(ci=60, long=1000, steps=40)
    TestDelivery.settings = TestOrderedDelivery.settings = schedules


def test_what_is_renewed_stays_away_while_its_client_lives() -> None:
    delivery = GroupDelivery()
    delivery.lease([(1, 1)], LeaseTerms(1, until=RENEW_STEP, at=0, client="c", renew=True))
    delivery.expire(RENEW_STEP, lambda client, _connection: client == "c")
    assert delivery.next_due() == 2 * RENEW_STEP
    assert delivery.returning(5) == []
    delivery.expire(2 * RENEW_STEP, lambda _client, _connection: False)
    assert delivery.returning(5) == [1]


def test_what_is_renewed_comes_back_in_the_end() -> None:
    delivery = GroupDelivery()
    delivery.lease([(1, 1)], LeaseTerms(1, until=RENEW_STEP, at=0, client="c", renew=True))
    now = RENEW_STEP
    while not (back := delivery.returning(1)):
        delivery.expire(now, lambda _client, _connection: True)
        now += RENEW_STEP
    assert back == [1]
    assert now <= RENEW_LONGEST + 2 * RENEW_STEP


def test_a_client_that_is_gone_gives_back_soon() -> None:
    delivery = GroupDelivery()
    delivery.lease([(1, 2)], LeaseTerms(1, until=RENEW_STEP, at=0, client="c", renew=True))
    delivery.expire_soon("c", 1_000)
    delivery.expire(1_000, lambda _client, _connection: True)
    assert delivery.returning(5) == [1, 2]


@pytest.mark.parametrize("fifo", [True, False])
def test_an_attempt_that_is_repeated_gets_the_same_messages(fifo: bool) -> None:
    delivery = GroupDelivery(fifo=fifo)
    for number in (1, 2, 3):
        if fifo:
            delivery.enqueue(number, "g")
    delivery.lease([(1, 3)], LeaseTerms(1, until=50, at=0, renew=True, attempt_id="x"))
    delivery.finish([(2, 2)])

    def again(attempt_id: str) -> list[int]:
        delivery.reclaim_attempt(attempt_id)
        return delivery.next_in_order(5, consecutive=True) if fifo else delivery.returning(5)

    assert again("y") == []
    kept = GroupDelivery(fifo=fifo)
    kept.restore(*delivery.keep())
    assert again("x") == [1, 3]
    delivery.lease([(1, 1)], LeaseTerms(2, until=60, at=0, attempt_id="x"))
    assert delivery.attempts(1) == 1  # nobody has seen the first
    assert again("x") == ([1, 3] if fifo else [1])
    delivery.lease([(1, 1), (3, 3)], LeaseTerms(3, until=60, at=0, attempt_id="z"))
    assert again("x") == []
    kept.reclaim_attempt("x")  # also after a crash
    assert [run.first for run in kept.in_flight if not run.away] == [1, 3]


def test_attempts_are_forgotten_with_their_messages() -> None:
    delivery = GroupDelivery()
    for number in range(1, 5_001):
        delivery.lease([(number, number)], LeaseTerms(number, until=number + 50, at=0, attempt_id=f"a-{number}"))
        delivery.finish([(number, number)])
    assert len(delivery._attempts) <= 1_001


def test_ranges_cover_exactly_the_ids() -> None:
    assert to_ranges([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]


def test_messages_of_a_snapshot_are_with_their_consumer_or_are_given_again() -> None:
    delivery = GroupDelivery()
    terms = LeaseTerms(4, until=9, at=0)
    delivery.restore(0, [(3, 3)], [InFlightRun(1, 1, 2, terms), InFlightRun(2, 2, 1, terms, away=False)])
    assert delivery.held(1, 2, 4, 8) == [(1, 1)]
    assert delivery.held(1, 2, 4, 9) == []
    assert delivery.returning(5) == [2]
    assert not delivery.is_new(3)
    assert delivery.is_new(4)


def test_all_messages_are_new_behind_the_last_that_was_given_or_is_done() -> None:
    delivery = GroupDelivery()
    delivery.reset_offset(5)
    assert (delivery.are_new_from(4), delivery.are_new_from(5)) == (False, True)
    delivery.lease([(7, 7)], LeaseTerms(1, 10**12, 0))
    assert (delivery.are_new_from(7), delivery.are_new_from(8)) == (False, True)
    delivery.finish([(9, 12)])
    assert (delivery.are_new_from(12), delivery.are_new_from(13)) == (False, True)
    delivery.restore(20, [(25, 26)], [InFlightRun(28, 30, 1, LeaseTerms(1, 10**12, 0))])
    assert (delivery.are_new_from(30), delivery.are_new_from(31)) == (False, True)


def test_timers_that_no_longer_count_are_let_go() -> None:
    delivery = GroupDelivery()
    delivery.lease([(1, 2)], LeaseTerms(1, 10**12, 0))
    for turn in range(10_000):
        delivery.hide(2, turn + 2, 10**12 + turn)
    assert len(delivery._timers) < 2_000
    assert delivery.next_due() == 10**12
