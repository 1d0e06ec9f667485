"""Commands that are run in the process of the tests answer as the program does and leave nothing behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import COMPLETE
from support.commands import run_command


def test_the_answer_is_that_of_the_program(tmp_path: Path) -> None:
    given, folders = b'{"body":"a"}\n{"body":3}\n', (str(tmp_path / name) for name in ("here", "there"))
    here, there = (["log", "append", "weather", "--jsonl", "--data", folder] for folder in folders)
    command = [sys.executable, "-m", "millstream", *there]
    program = subprocess.run(command, input=given, capture_output=True, check=False)
    answer = run_command(*here, stdin=given)
    assert (answer.code, answer.out_bytes, answer.err_bytes) == (program.returncode, program.stdout, program.stderr)
    assert (answer.code, answer.out) == (2, "1 1\n") and "line 2" in answer.err


@pytest.mark.parametrize("arguments", [["nonsense"], ["log", "list", "--nonsense"], ["log", "read"]])
def test_what_the_parser_refuses_ends_with_2(arguments: list[str]) -> None:
    code, out, err = run_command(*arguments)
    assert (code, out) == (2, "") and err.startswith("Usage: millstream")


def test_an_uncaught_exception_is_printed_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("millstream.cli.config.load_settings", fail)
    answer = run_command("--debug", "config", "show")
    assert answer.code == 1
    assert answer.err.startswith("Traceback") and answer.err.endswith("RuntimeError: broken\n")


def test_input_and_output_are_bytes(tmp_path: Path) -> None:
    at = ["--data", str(tmp_path)]
    assert run_command("log", "append", "weather", *at, stdin=b"\xff\x00\r\nlast").out == "1 1\n2 2\n"
    assert run_command("log", "read", "weather", *at).out_bytes == b"\xff\x00\r\nlast\n"


def test_input_is_read_as_a_stream_of_bytes_and_as_text() -> None:
    event = b'{"id":1,"key":"a","event_time":5,"received_at":6}\n'
    batched = run_command("batch", "--window", "50", "--max-delay", "20", stdin=event)
    assert (batched.code, json.loads(batched.out)["events"]) == (0, [1])
    made = run_command("config", "user", "ada", "--stdin", stdin=b"correct horse\n")
    assert made.code == 0 and '[console.users."ada"]' in made.out


def test_variables_hold_for_one_call_and_the_folder_stays(tmp_path: Path) -> None:
    def workers(environment: dict[str, str] | None = None) -> Any:
        answer = run_command("config", "show", "--json", "--data", str(tmp_path), environment=environment)
        rows = map(json.loads, answer.out.splitlines())
        return next(row["value"] for row in rows if row["setting"] == "mill.workers")

    before, folder = dict(os.environ), Path.cwd()
    assert workers({"MILLSTREAM_MILL__WORKERS": "3"}) == 3 != workers()
    assert (dict(os.environ), Path.cwd()) == (before, folder)


def test_completion_is_asked_for_by_variables() -> None:
    words = {COMPLETE: "bash_complete", "COMP_WORDS": "millstream que", "COMP_CWORD": "1"}
    assert run_command(environment=words) == (0, "plain,queue\n", "")


def test_a_call_leaves_nothing_behind_that_another_one_meets(tmp_path: Path) -> None:
    def process() -> list[object]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        streams = [sys.stdin, sys.stdout, sys.stderr, sys.argv, threading.excepthook]
        return [*handlers, *streams, *logging.getLogger().handlers, logging.getLogger("millstream").level]

    before = process()
    sqlite3.connect(tmp_path / "application.db").close()
    relay = ["log", "relay", f"sqlite:///{tmp_path / 'application.db'}", "--data", str(tmp_path)]
    assert run_command(*relay, "--create-table").code == 0
    made = run_command(*relay, "--log", "orders", "--once", "--json", "--log-format", "json")  # handles signals
    assert (made.code, json.loads(made.out)["messages"]) == (0, 0)
    assert process() == before
    lines = run_command("serve", "--no-broker", "--no-console", "--log-format", "json", "--data", str(tmp_path))
    assert lines.code == 2 and json.loads(lines.err)["level"] == "error"
    assert process() == before
    absent = run_command("log", "describe", "absent", "--data", str(tmp_path))
    assert absent.code == 3 and absent.err.startswith("millstream: there is no log 'absent'")
