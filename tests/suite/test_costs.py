"""Budgets of tests: what is over one is named, and fails at twice as much."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from suite.again import OTHER_FAULT
from suite.costs import COLLECTION, MARGIN, Costs


@pytest.mark.parametrize(("times", "named", "fails"), [(0.9, False, False), (1.1, True, False), (2.1, True, True)])
def test_what_is_over_its_budget_is_named_and_fails_at_twice_as_much(
    pytestconfig: pytest.Config, times: float, named: bool, fails: bool
) -> None:
    costs = Costs(pytestconfig)
    costs._add_collection(times * costs._budgets[COLLECTION])
    assert (bool(costs.over_budget()), bool(costs.over_budget(MARGIN))) == (named, fails)


@pytest.mark.parametrize(
    ("code", "times", "fault"),
    [(0, 1, ""), (1, 1, ""), (1, 3, "one process took .*"), (2, 1, "the last run ended early, with exit code 2")],
)
def test_what_is_wrong_beside_failed_tests_is_recorded(
    pytestconfig: pytest.Config, code: int, times: float, fault: str
) -> None:
    recorded: dict[str, str] = {}
    config: Any = SimpleNamespace(cache=SimpleNamespace(set=recorded.__setitem__))
    session: Any = SimpleNamespace(config=config, exitstatus=code)
    costs = Costs(pytestconfig)
    costs._record = False
    costs.pytest_sessionstart(session)
    assert recorded == {OTHER_FAULT: "the last run did not end"}
    costs._add_collection(times * costs._budgets[COLLECTION])
    costs.pytest_sessionfinish(session)
    assert re.fullmatch(fault, recorded[OTHER_FAULT])
