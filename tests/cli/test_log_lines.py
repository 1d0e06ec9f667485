"""Log lines: for people on a terminal, JSON elsewhere; with the trace they belong to, and without secrets."""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from millstream.cli.logging_setup import print_error, start_logging, stop_logging
from millstream.cli.main import run
from millstream.core.secrets import without_secrets

OURS = logging.getLogger("millstream.test")


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    stop_logging()


def test_a_json_line_says_when_where_how_bad_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("json", "info")
    OURS.warning("%s messages\nput aside", 3)
    line = json.loads(capsys.readouterr().err)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "warning", "logger": "millstream.test", "message": "3 messages\nput aside"}


def test_an_error_that_nobody_expected_has_its_traceback_in_json_and_for_people_with_debug_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> str:
        try:
            raise RuntimeError("mysql://ada:grain@db/x is away")
        except RuntimeError:
            OURS.exception("it failed")
        return capsys.readouterr().err

    start_logging("json", "info")
    line = json.loads(fail())
    assert line["error"] == "RuntimeError: mysql://ada:***@db/x is away"
    assert line["traceback"].startswith("Traceback") and "grain" not in line["traceback"]
    start_logging("console", "info")
    (only,) = fail().splitlines()
    assert "error   test: it failed: RuntimeError: mysql://ada:***@db/x is away (`--debug` shows where)" in only
    start_logging("console", "info", debug=True)
    assert "Traceback" in fail()


@pytest.mark.parametrize("debug", [False, True])
def test_what_a_record_quotes_looks_like_no_other_record_and_does_not_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    quoted = "denied\n2026-11-01T00:00:00Z info    mill: all copies are good\x9b2J\u202e"
    start_logging("console", "info", debug=debug)
    try:
        raise RuntimeError(quoted)
    except RuntimeError:
        OURS.exception("the bucket answered: %s", quoted)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("error   test: the bucket answered: denied")
    assert others and all(line.startswith("    ") and line.isprintable() for line in others)
    assert r"all copies are good\x9b2J\u202e" in others[0]


def test_a_thread_that_dies_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("json", "info")
    thread = threading.Thread(target=lambda: 1 / 0, name="worker-7")
    thread.start()
    thread.join()
    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["error"]) == ("worker-7 has failed", "ZeroDivisionError: division by zero")


def test_the_level_is_ours_and_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("json", "debug")
    OURS.debug("a")
    logging.getLogger("somebody").info("b")
    logging.getLogger("somebody").warning("c")
    start_logging("json", "error")
    OURS.warning("d")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["a", "c"]


def test_warnings_of_libraries_about_a_stop_and_idle_connections_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start_logging("json", "info")
    grpc, urllib3 = logging.getLogger("grpc._cython.cygrpc"), logging.getLogger("urllib3.connectionpool")
    grpc.warning("Aborting method [%s] due to server stop.", "/apache.rocketmq.v2.MessagingService/Telemetry")
    urllib3.warning("Connection pool is full, discarding connection: %s. Connection pool size: %s", "127.0.0.1", 64)
    urllib3.warning("Failed to parse headers")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "Failed to parse headers"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://guest:gu@st@mq:5672/v is away", "amqp://guest:***@mq:5672/v is away"),
        ("mqtts://ada:a%2Fb@h?tls_ca=/x", "mqtts://ada:***@h?tls_ca=/x"),
        ("password=grain, user=ada", "password=***, user=ada"),
        ('{"secret": "grain"}', '{"secret": "***"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("mysql://ada@h/x?password_file=/run/secret", "mysql://ada@h/x?password_file=/run/secret"),
        ("see https://example.org/a@b", "see https://example.org/a@b"),
        ("12:30: one@two", "12:30: one@two"),
    ],
)
def test_no_secret_is_written(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_the_last_word_of_a_command_is_a_line_where_lines_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("as ever")
    start_logging("json", "info")
    print_error("as a line")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "millstream: as ever" and json.loads(second)["message"] == "as a line"


def test_flags_win_over_settings_and_a_bad_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = ["serve", "--no-broker", "--no-console", "--data", str(tmp_path)]
    (tmp_path / "millstream.toml").write_text('[logging]\nformat = "json"\n', "utf-8")
    assert run(nothing) == 2
    assert "Both the broker and the console" in json.loads(capsys.readouterr().err)["message"]
    assert run([*nothing, "--log-format", "console"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("omit --no-broker or --no-console.")
    (tmp_path / "millstream.toml").write_text('[logging]\nformat = "xml"\n', "utf-8")
    assert run(nothing) == 2
    assert "logging.format" in capsys.readouterr().err


def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "millstream", "serve", "--no-console", "--broker", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--data", str(tmp_path)], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith(b"broker ready on ")
        process.send_signal(signal.SIGTERM)
        text = b""
        while not text.endswith(b"stopped\r\n"):
            text += os.read(ours, 4096)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
    assert text.splitlines()[-1].split(b" ", 1)[1] == b"info    cli.serve: stopped"


def test_a_line_within_a_trace_names_it() -> None:
    pytest.importorskip("opentelemetry.sdk")
    program = """
import logging
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from millstream.cli.logging_setup import start_logging
from millstream.core.tracing import span

trace.set_tracer_provider(TracerProvider())
start_logging("json", "info")
log = logging.getLogger("millstream")
with span("store") as header:
    log.info(header)
log.info("outside")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    inside, outside = map(json.loads, ran.stderr.splitlines())
    assert inside["message"].startswith(f"00-{inside['trace_id']}-{inside['span_id']}-")
    assert "trace_id" not in outside
