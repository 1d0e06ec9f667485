"""The guard against sleeps by the real clock: which calls fail a test, and which do not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from millstream.core import clock
from millstream.testing import waiting
from suite.sleeping import ADVICE, TESTS, sleeper

NAPS = """
import asyncio
import threading
import time

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.testing.waiting import until, until_async


async def nap(seconds):
    await asyncio.sleep(seconds)


def test_time():
    time.sleep(0.001)


def test_clock():
    SystemClock().sleep(0.001)


def test_asyncio():
    asyncio.run(nap(0.001))


def test_thread():
    thread = threading.Thread(target=lambda: time.sleep(0.001))
    thread.start()
    thread.join()


@pytest.fixture
def tired():
    time.sleep(0.001)


def test_fixture(tired):
    pass


@pytest.fixture
def slow_to_end():
    yield
    time.sleep(0.001)


def test_end(slow_to_end):
    pass


@pytest.mark.served
def test_served():
    time.sleep(0.001)
    asyncio.run(nap(0.001))


def test_waiting():
    until(iter([False, True]).__next__)
    asyncio.run(until_async(iter([False, True]).__next__))
    asyncio.run(nap(0))
    VirtualClock().sleep(60)
"""


def test_a_test_of_the_default_tier_that_sleeps_by_the_real_clock_fails(tmp_path: Path) -> None:
    suite = tmp_path / "tests" / "suite"
    suite.mkdir(parents=True)
    for name in ("__init__.py", "tiers.py", "sleeping.py"):
        shutil.copy(TESTS / "suite" / name, suite)
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ["suite.tiers", "suite.sleeping"]\n')
    (tmp_path / "tests" / "test_naps.py").write_text(NAPS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:schemathesis",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S+::test_(\w+)", done.stdout, re.MULTILINE)
    assert sorted(outcomes) == [
        *(("ERROR", name) for name in ("end", "fixture")),
        *(("FAILED", name) for name in ("asyncio", "clock", "thread", "time")),
        *(("PASSED", name) for name in ("end", "served", "waiting")),
    ], done.stdout
    line = NAPS.splitlines().index("    time.sleep(0.001)") + 1
    said = f"test_naps.py::test_time sleeps by the real clock, for 0.001 s at tests/test_naps.py:{line}: {ADVICE}"
    assert said in done.stdout


def frame_of(*files: str) -> FrameType:
    """The frame of a function in the last of *files*; each was called by one in the file before it."""
    code = "import sys\ndef called(*others): return others[0](*others[1:]) if others else sys._getframe()\n"
    functions = []
    for file in files:
        names: dict[str, object] = {}
        exec(compile(code, file, "exec"), names)
        functions.append(names["called"])
    frame: FrameType = functions[0](*functions[1:])  # type: ignore[operator]
    return frame


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ([f"{TESTS}/queue/test_a.py"], "tests/queue/test_a.py:2"),
        ([f"{TESTS}/queue/test_a.py", clock.__file__], "tests/queue/test_a.py:2"),
        ([f"{TESTS}/queue/test_a.py", waiting.__file__], None),
        ([f"{TESTS}/queue/test_a.py", waiting.__file__, clock.__file__], None),
        ([f"{TESTS}/queue/test_a.py", "/usr/lib/python3/subprocess.py"], None),
        ([f"{TESTS}/queue/test_a.py", "<string>"], None),
    ],
)
def test_the_line_that_sleeps_is_the_first_one_below_the_clock(files: list[str], place: str | None) -> None:
    assert sleeper(frame_of(*files)) == place
