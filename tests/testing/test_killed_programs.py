"""A program that a test kills was at work: one that ended before its kill fails the test."""

from __future__ import annotations

import sys

import pytest

from millstream.testing.killed_programs import kill_after, kill_at

ENDS = [sys.executable, "-S", "-c", "print('one'); raise SystemExit(3)"]
GOES_ON = [sys.executable, "-S", "-c", "import time; print('one'); print('two', flush=True); time.sleep(300)"]


def test_a_program_that_ends_before_it_is_killed_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="killed at its work, and ended by itself with exit code 3"):
        kill_at(ENDS, lambda: False, "its work")
    with pytest.raises(AssertionError, match="killed at 2 lines, and ended by itself with exit code 3"):
        kill_after(ENDS, 2)


def test_a_program_is_killed_at_its_moment() -> None:
    kill_at(GOES_ON, lambda: True, "its start")
    assert kill_after(GOES_ON, 1)[0] == b"one"
    assert kill_after(GOES_ON, 2) == [b"one", b"two"]
