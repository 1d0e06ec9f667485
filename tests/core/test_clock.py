"""The virtual clock moves only when told, and wakes who waits on it."""

from __future__ import annotations

import threading

import pytest

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.testing.waiting import join


def test_advancing_moves_both_times() -> None:
    clock = VirtualClock(start=0)
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == (1_500_000, 1.5)


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = VirtualClock(start=0)
    clock.jump(-3600)
    assert (clock.now(), clock.monotonic()) == (-3600 * MICROSECONDS, 0.0)


def test_sleeping_takes_no_real_time() -> None:
    clock = VirtualClock(start=0)
    clock.sleep(86_400)
    assert clock.monotonic() == 86_400


def test_time_does_not_go_back_by_advancing() -> None:
    with pytest.raises(ValueError, match="jump"):
        VirtualClock().advance(-1)


def test_a_waiter_wakes_when_its_time_is_up() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    results: list[bool] = []
    waiting = threading.Event()

    def wait() -> None:
        with condition:
            waiting.set()
            results.append(clock.wait(condition, 10))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    with condition:  # the waiter has let go of it, so it waits by now
        pass
    clock.advance(10)
    join(thread)
    assert results == [False]


def test_a_deadline_in_the_past_does_not_wait() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    with condition:
        assert clock.wait(condition, 0) is False
