"""Budgets of tests: what is over one is named, and fails at twice as much."""

from __future__ import annotations

import pytest

from suite.costs import COLLECTION, MARGIN, Costs


@pytest.mark.parametrize(("times", "named", "fails"), [(0.9, False, False), (1.1, True, False), (2.1, True, True)])
def test_what_is_over_its_budget_is_named_and_fails_at_twice_as_much(
    pytestconfig: pytest.Config, times: float, named: bool, fails: bool
) -> None:
    costs = Costs(pytestconfig)
    costs._add_collection(times * costs._budgets[COLLECTION])
    assert (bool(costs.over_budget()), bool(costs.over_budget(MARGIN))) == (named, fails)
