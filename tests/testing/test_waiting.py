"""Tests wait for what others are about to do, and leave them the processor."""

from __future__ import annotations

import itertools
import threading

import pytest

from millstream.core.clock import SystemClock
from millstream.testing.waiting import join, pause_after, until


def test_what_takes_long_to_look_at_is_looked_at_less_often() -> None:
    clock, began, ended = SystemClock(), list[float](), list[float]()

    def look() -> bool:
        began.append(clock.monotonic())
        while clock.monotonic() < began[-1] + 0.004:
            pass
        ended.append(clock.monotonic())
        return len(began) == 4

    assert until(look)
    pauses = [later - earlier for earlier, later in zip(ended, itertools.islice(began, 1, None), strict=False)]
    assert len(pauses) == 3 and min(pauses) >= 0.016


def test_a_pause_is_neither_nothing_nor_long() -> None:
    assert (pause_after(0), pause_after(0.01), pause_after(10)) == (0.005, 0.04, 0.25)


def test_a_thread_that_does_not_end_fails_the_test() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="stuck")
    thread.start()
    with pytest.raises(TimeoutError, match="thread stuck did not end within 0"):
        join(thread, seconds=0.01)
    go_on.set()
    join(thread)
