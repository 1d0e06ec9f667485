"""No test of the default tier sleeps by the real clock: it waits for a condition or an event, or moves a virtual clock.

A test fails where code under ``tests`` calls ``time.sleep``, the ``sleep`` of the system's clock, or ``asyncio.sleep``,
in whatever thread. Code of Millstream may sleep, and so may the helpers of :mod:`millstream.testing`, which check a
condition again and again until a deadline.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from millstream.core import clock
from suite.tiers import DEFAULT, tier_of

TESTS = Path(__file__).parents[1]
ADVICE = (
    "wait for the condition or the event that the sleep stands for (millstream.testing.waiting, asyncio.Event), move a "
    "VirtualClock, or mark the test with the tier that it belongs to"
)

_sleeps = pytest.StashKey[list[str]]()


def sleeper(frame: FrameType | None) -> str | None:
    """The line under ``tests`` that sleeps, where *frame* calls a sleep; None where other code does."""
    while frame is not None and frame.f_code.co_filename == clock.__file__:
        frame = frame.f_back
    if frame is None or not Path(frame.f_code.co_filename).is_relative_to(TESTS):
        return None
    return f"{Path(frame.f_code.co_filename).relative_to(TESTS.parent)}:{frame.f_lineno}"


def _watched(sleep: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    """*sleep*, which adds the calls from code under ``tests`` to *found*; to sleep for no time only gives way."""

    @functools.wraps(sleep)
    def watched(seconds: float, *result: Any) -> Any:
        if seconds > 0 and (where := sleeper(sys._getframe(1))) is not None:
            found.append(f"for {seconds:g} s at {where}")
        return sleep(seconds, *result)

    return watched


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if tier_of(item) != DEFAULT:
        return (yield)
    found = item.stash[_sleeps] = []
    with pytest.MonkeyPatch.context() as patch:  # Python tells audit hooks of time.sleep only from 3.13 on
        patch.setattr(time, "sleep", _watched(time.sleep, found))  # noqa: TID251 - which it guards
        patch.setattr(asyncio, "sleep", _watched(asyncio.sleep, found))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    found = item.stash.get(_sleeps, [])
    if found and report.passed:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} sleeps by the real clock, {', '.join(dict.fromkeys(found))}: {ADVICE}"
        found.clear()
    return report
