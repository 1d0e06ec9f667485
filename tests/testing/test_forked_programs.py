"""Programs that are forked from a prepared process are like those that are started anew."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.testing.forked_programs import ForkedProgram
from millstream.testing.waiting import until

_ = 0
PROGRAM = """
import atexit, json, os, sys, time

def report():
    atexit.register(print, "the end", flush=True)
    said = sys.stdin.read()
    print(json.dumps([os.getpid(), sys.argv, os.environ["COLOUR"], "HOME" in os.environ, os.getcwd(), said]))
    print("a warning", file=sys.stderr)
    return 3

def work():
    print("begun", flush=True)
    time.sleep(60)

def fail():
    raise ValueError("no grain")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program and what it is given to read."""
    (tmp_path / "forked_grain.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "given").write_text("hello", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@contextmanager
def started(folder: Path, function: str, *arguments: str) -> Iterator[ForkedProgram]:
    with (
        (folder / "given").open() as given,
        (folder / "out").open("w") as out,
        (folder / "errors").open("w") as errors,
    ):
        program = ForkedProgram(
            f"forked_grain:{function}",
            ["name", *arguments],
            [file.fileno() for file in (given, out, errors)],
            environment={"COLOUR": "green"},
            folder=str(folder),
        )
    try:
        yield program
    finally:
        program.kill()
        program.wait(30)


def test_it_has_arguments_environment_folder_and_streams_of_its_own(folder: Path) -> None:
    with started(folder, "report", "a b", "ü") as program:
        assert program.wait(30) == program.poll() == 3
        program.kill()
        assert program.poll() == 3
    said, end = (folder / "out").read_text("utf-8").splitlines()
    assert json.loads(said) == [program.pid, ["name", "a b", "ü"], "green", False, str(folder), "hello"]
    assert program.pid != os.getpid()
    assert (end, (folder / "errors").read_text("utf-8")) == ("the end", "a warning\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(folder: Path, number: int) -> None:
    with started(folder, "work") as program:
        until((folder / "out").read_bytes, "the begin of the program")
        assert program.poll() is None
        with pytest.raises(TimeoutError, match=str(program.pid)):
            program.wait(0)
        program.send_signal(number)
        assert program.wait(30) == -number


def test_an_exception_is_printed_and_ends_it_with_1(folder: Path) -> None:
    with started(folder, "fail") as program:
        assert program.wait(30) == 1
    assert "ValueError: no grain" in (folder / "errors").read_text("utf-8")
