"""Budgets of tests grow with the slowness of the machine, and never shrink."""

from __future__ import annotations

import pytest

from suite.costs import Costs, MachineSpeed


@pytest.mark.parametrize(("times", "slowness"), [([], 1), ([0.5], 1), ([1, 1, 9], 1), ([3, 2, 1, 2], 2)])
def test_a_machine_is_as_slow_as_the_median_of_its_times(times: list[float], slowness: float) -> None:
    speed = MachineSpeed()
    for each in times:
        speed.add(each * MachineSpeed.SECONDS)
    assert speed.slowness() == pytest.approx(slowness)


def test_times_are_taken_now_and_then() -> None:
    speed = MachineSpeed()
    for _ in range(200):
        speed.after_a_test()
    assert 0 < speed.slowness() < 100


def test_a_run_on_a_slow_machine_may_take_as_much_longer(pytestconfig: pytest.Config) -> None:
    costs = Costs(pytestconfig)
    costs._was_quiet = True
    costs._too_expensive = [(9.0, 7.0, "collection")]
    assert costs.over_budget() == ["collection"]
    costs._speed.add(2 * MachineSpeed.SECONDS)
    assert costs.over_budget() == []
