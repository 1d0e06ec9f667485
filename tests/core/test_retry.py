"""Failed calls are tried again, after pauses, as often as the policy says."""

from __future__ import annotations

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.errors import MillstreamError
from millstream.core.retry import NO_RETRY, RetryPolicy


class Passing(MillstreamError):
    """It will pass."""

    transient = True


class Calls:
    """Fails as often as told, then answers."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.made = 0
        self._failures = failures
        self._error = error

    def __call__(self) -> str:
        self.made += 1
        if self.made <= self._failures:
            raise self._error
        return "answer"


EXACT = RetryPolicy(attempts=4, first=1.0, factor=2.0, longest=3.0, jitter=0.0)


def test_pauses_grow_up_to_the_longest() -> None:
    assert list(EXACT.pauses()) == [1.0, 2.0, 3.0]


def test_jitter_is_drawn_from_the_seed() -> None:
    policy = RetryPolicy(jitter=0.5)
    assert list(policy.pauses(seed=1)) == list(policy.pauses(seed=1)) != list(policy.pauses(seed=2))


def test_no_call_begins_after_the_time_that_was_given() -> None:
    clock, calls = VirtualClock(), Calls(9, Passing())
    with pytest.raises(Passing):
        RetryPolicy(attempts=9, first=1.0, factor=2.0, jitter=0.0, within=5.0).call(calls, clock)
    assert (calls.made, clock.monotonic()) == (3, 3.0)


def test_transient_failures_are_tried_again() -> None:
    clock, calls = VirtualClock(), Calls(3, Passing())
    assert EXACT.call(calls, clock) == "answer"
    assert (calls.made, clock.monotonic()) == (4, 6.0)


def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    clock, calls = VirtualClock(), Calls(9, Passing())
    with pytest.raises(Passing):
        EXACT.call(calls, clock)
    assert (calls.made, clock.monotonic()) == (4, 6.0)  # no pause after the last attempt


@pytest.mark.parametrize("error", [MillstreamError("for good"), ValueError("a mistake")])
def test_lasting_errors_are_not_tried_again(error: Exception) -> None:
    calls = Calls(1, error)
    with pytest.raises(type(error)):
        EXACT.call(calls, VirtualClock())
    assert calls.made == 1


def test_no_retry_means_one_call() -> None:
    calls = Calls(1, Passing())
    with pytest.raises(Passing):
        NO_RETRY.call(calls, VirtualClock())
    assert calls.made == 1
