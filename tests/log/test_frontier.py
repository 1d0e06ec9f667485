"""The frontier against a plain set of numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.log import Frontier, IdRange

ids = st.integers(1, 60)


class FrontierMachine(RuleBasedStateMachine):
    """Confirm ids in every way there is; the frontier must agree with the set of all that was confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.frontier = Frontier()
        self.model: set[int] = set()

    @rule(number=ids)
    def add_one(self, number: int) -> None:
        self._add([number], lambda: self.frontier.add(number))

    @rule(first=ids, count=st.integers(0, 20))
    def add_range(self, first: int, count: int) -> None:
        self._add(range(first, first + count), lambda: self.frontier.add(first, first + count - 1))

    @rule(many=st.lists(ids, max_size=20))
    def add_many(self, many: list[int]) -> None:
        self._add(many, lambda: self.frontier.add_ids(many))

    @rule(many=st.sets(ids, max_size=20))
    def add_array(self, many: set[int]) -> None:
        self._add(many, lambda: self.frontier.add_ids(np.array(sorted(many), np.int64)))

    @rule()
    def store_and_restore(self) -> None:
        self.frontier = Frontier(self.frontier.pointer, self.frontier.ahead)

    @rule(last=ids)
    def cut(self, last: int) -> None:
        self.frontier = self.frontier.up_to(last)
        self.model = {number for number in self.model if number <= last}

    @rule(first=ids, count=st.integers(0, 30))
    def missing_is_what_is_not_in_the_set(self, first: int, count: int) -> None:
        wanted = IdRange(first, first + count - 1)
        found = [number for part in self.frontier.missing(wanted) for number in part]
        assert found == [number for number in wanted if number not in self.model]

    @invariant()
    def pointer_and_ranges_agree_with_the_set(self) -> None:
        pointer = 0
        while pointer + 1 in self.model:
            pointer += 1
        assert self.frontier.pointer == pointer
        assert self.frontier.last == max(self.model, default=0)
        ahead = self.frontier.ahead
        assert {n for part in ahead for n in part} == {n for n in self.model if n > pointer}
        assert all(one.last + 1 < two.first for one, two in itertools.pairwise(ahead))
        assert all((n in self.frontier) == (n in self.model) for n in range(1, 90))

    def _add(self, numbers: object, call: object) -> None:
        before = self.frontier.pointer
        moved = call()  # type: ignore[operator]
        self.model.update(numbers)  # type: ignore[call-overload]
        assert moved == (self.frontier.pointer > before)


TestFrontier = FrontierMachine.TestCase


def test_what_is_no_id_is_refused() -> None:
    with pytest.raises(TypeError, match="must be integers"):
        Frontier().add_ids([1.5])


def test_a_range_costs_as_much_as_an_id() -> None:
    frontier = Frontier()
    frontier.add(2, 10**15)
    assert frontier.add(1)
    assert frontier.pointer == 10**15
    assert frontier.ahead == []
