"""``millstream anchor monitor`` as cron, a service and a webhook see it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.durable import write_durably
from millstream.testing.waiting import until
from support.commands import CommandResult, run_command
from support.published_ledger import PublishedLedger, served


@pytest.fixture
def ledger(tmp_path: Path) -> PublishedLedger:
    made = PublishedLedger(tmp_path / "web" / "anchors", clock=VirtualClock(SystemClock().now()))
    made.grow(3)
    made.publish()
    return made


@pytest.fixture
def url(ledger: PublishedLedger) -> Iterator[str]:
    with served(ledger.folder.parent) as root:
        yield f"{root}/anchors"


def options(ledger: PublishedLedger, url: str, *more: str) -> list[str]:
    state = ledger.folder.parent.parent / "anchors.state"
    return ["anchor", "monitor", url, "--key", str(ledger.key.verifier_key), "--state", str(state), *more]


def look(ledger: PublishedLedger, url: str, *more: str) -> CommandResult:
    return run_command(*options(ledger, url, "--once", *more))


def fork(ledger: PublishedLedger) -> None:
    ledger.rewrite([])
    ledger.grow(4, salt=1)
    ledger.publish()


def test_each_run_of_cron_says_what_it_checked_and_ends_with_0_or_1(ledger: PublishedLedger, url: str) -> None:
    key = f"example.org/anchors+{ledger.key.verifier_key.key_id.hex()}"
    first = look(ledger, url)
    assert (first.code, first.out, first.err) == (
        0, f"example.org/anchors: 3 entries, 3 new; signed by {key}; 3 verified\n", ""
    )  # fmt: skip
    ledger.grow(1)
    ledger.publish()
    assert "4 entries, 1 new" in look(ledger, url).out
    fork(ledger)
    found = look(ledger, url)
    assert (found.code, found.out.splitlines()[1]) == (
        1, "fork: FORK: the key of the ledger example.org/anchors signed two trees of 4 entries with different roots"
    )  # fmt: skip
    report = json.loads(look(ledger, url, "--json").out)
    kept, offered = report["findings"][0]["checkpoints"]
    assert kept != offered == ledger.signed().data.decode()
    forgotten = look(ledger, url, "--acknowledge")
    assert (forgotten.code, forgotten.out.startswith("fork: ")) == (0, True)


def test_what_cannot_be_used_is_an_error_of_its_own(ledger: PublishedLedger, url: str) -> None:
    state = ["--state", str(ledger.folder / "x")]
    assert run_command("anchor", "monitor", url, *state, "--once").code == 2
    assert (
        run_command("anchor", "monitor", "ftp://example.org", "--key", str(ledger.key.verifier_key), *state).code == 2
    )
    assert look(ledger, url, "--cas", "files", "--entries", "any").code == 2
    assert look(ledger, url, "--alarm", "mailto:x").code == 1
    assert look(ledger, "http://127.0.0.1:9/").code == 1


class Webhook:
    """Receives what is posted, and refuses it as long as ``is_away``."""

    def __init__(self) -> None:
        self.received: list[dict[str, object]] = []
        self.is_away = False
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not hook.is_away:
                    hook.received.append(json.loads(body))
                self.send_response(503 if hook.is_away else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    thread = threading.Thread(target=hook.server.serve_forever, args=(0.01,))
    thread.start()
    yield hook
    hook.server.shutdown()
    thread.join()
    hook.server.server_close()


def test_a_running_monitor_alarms_continues_and_ends_on_sigterm(
    ledger: PublishedLedger, url: str, webhook: Webhook
) -> None:
    command = [sys.executable, "-m", "millstream", *options(ledger, url, "--interval", "20ms", "--alarm", webhook.url)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert "3 entries, 3 new" in running.stdout.readline()
            checkpoint = ledger.folder / "checkpoint"
            old = checkpoint.read_bytes()
            webhook.is_away = True
            ledger.grow(1)
            new = ledger.publish(anew=False)
            assert "4 entries, 1 new" in running.stdout.readline()
            write_durably(checkpoint, old)
            assert "4 entries" in running.stdout.readline()
            assert re.match("rollback: the ledger .* has 3 entries, but had 4 before", running.stdout.readline())
            webhook.is_away = False
            until(lambda: len(webhook.received) == 1, "the alarm")
            write_durably(checkpoint, new.data)
            until(lambda: len(webhook.received) == 2, "the end of the alarm")
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    first, second = webhook.received
    assert (first["queue"], first["kind"], first["over"]) == ("example.org/anchors", "ledger-rollback", False)
    assert (second["kind"], second["over"]) == ("ledger-rollback", True)


def test_a_running_monitor_without_an_alarm_ends_at_the_first_finding(ledger: PublishedLedger, url: str) -> None:
    look(ledger, url)
    fork(ledger)
    found = run_command(*options(ledger, url, "--interval", "20ms"))
    assert (found.code, "FORK" in found.out) == (1, True)


def test_short_faults_of_the_network_are_no_finding_of_a_running_monitor(ledger: PublishedLedger, url: str) -> None:
    look(ledger, url)
    gone = run_command(*options(ledger, "http://127.0.0.1:9", "--interval", "1ms"))
    assert (gone.code, gone.out.count("unavailable:")) == (1, 1)
