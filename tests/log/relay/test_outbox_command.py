"""``millstream log relay`` as it is run: real processes, real kills, real transactions on the other side."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.log.backends.database.driver import DatabaseConnection, ServerError
from millstream.testing.waiting import until
from suite.sizes import sized
from support.outboxes import bodies, connect_application, count, insert

RELAY = [sys.executable, "-c", "from millstream.cli.main import main; main()", "log", "relay"]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


class Application:
    """Writes messages in transactions of one to three rows, some of which it takes back, until it is stopped."""

    def __init__(self, url: str, number: int) -> None:
        self._url, self._number = url, number
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.committed: list[bytes] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        draw = random.Random(self._number)
        with contextlib.closing(connect_application(self._url)) as connection:
            begin = "BEGIN IMMEDIATE" if self._url.startswith("sqlite:") else "BEGIN"
            for turn in itertools.count():
                if self._stop.wait(0.005):
                    return
                written = [b"%d %d %d" % (self._number, turn, n) for n in range(draw.randint(1, 3))]
                with contextlib.suppress(ServerError):  # SQLite may be busy for long
                    connection.execute(begin)
                    for body in written:
                        insert(connection, body)
                    if draw.random() < 0.2:
                        connection.execute("ROLLBACK")
                    else:
                        connection.execute("COMMIT")
                        self.committed += written


@pytest.mark.smoke
@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_p2_every_committed_row_is_in_the_log_once_though_relays_are_killed(
    database_url: str, application: DatabaseConnection, store: str
) -> None:
    draw = random.Random(5)
    command = [*RELAY, database_url, "--log", "orders", "--store", store, "--rows", "50", "--poll", "0.01"]
    applications = [Application(database_url, number) for number in range(3)]
    for one in applications:
        one.start()
    clock = SystemClock()
    try:
        for _ in range(sized(ci=2, long=100)):
            process = subprocess.Popen([*command, "--standby"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            before = last_id(store)
            until(lambda since=before, relay=process: last_id(store) > since or relay.poll() is not None, "a message")
            clock.sleep(draw.random() / 10)
            process.kill()
            _, errors = process.communicate()
            assert last_id(store) > before, errors.decode()
    finally:
        for one in applications:
            one.stop()
    assert run([*command[3:], "--once"]) == 0
    with open_store(store, read_only=True) as opened:
        found = bodies(opened.log(LogSpec("orders"), create=False))
    for number, one in enumerate(applications):
        assert [body for body in found if body.startswith(b"%d " % number)] == one.committed
    assert len(found) == sum(len(one.committed) for one in applications) > 0
    assert count(application) == 0


def last_id(store: str) -> int:
    with open_store(store) as opened:
        return opened.log(LogSpec("orders")).last_id


def test_a_table_is_made_relayed_once_and_reported(
    database_url: str, connect: Callable[[str], DatabaseConnection], store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "relay", database_url, "--create-table"]) == 0
    made = capfd.readouterr().out
    assert run(["log", "relay", database_url, "--show-table"]) == 0
    assert capfd.readouterr().out == made
    assert made.startswith("CREATE TABLE IF NOT EXISTS")
    application = connect(database_url)
    for number in range(3):
        insert(application, b"%d" % number)
    arguments = ["log", "relay", database_url, "--log", "orders", "--store", store, "--once"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["messages"], found["last_id"], found["waiting"]) == (3, 3, 0)
    assert run(arguments) == 0
    assert "outbox to orders: 0 messages" in capfd.readouterr().out


def test_sigterm_lets_the_batch_be_finished(database_url: str, application: DatabaseConnection, store: str) -> None:
    for number in range(50):
        insert(application, b"%d" % number)
    command = [*RELAY, database_url, "--log", "orders", "--store", store, "--rows", "20", "--json"]
    with running(command) as process:
        until(lambda: not count(application), "the relay of all rows")
        insert(application, b"later")
        until(lambda: not count(application), "the relay of a later row")
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors.decode()
    assert json.loads(out.splitlines()[-1])["messages"] == 51


def test_what_cannot_be_done_is_said(
    database_url: str, application: DatabaseConnection, store: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["log", "relay", database_url, "--store", store, "--once"]
    assert run(arguments) == 2
    assert "--log NAME" in capfd.readouterr().err
    assert run([*arguments, "--log", "orders", "--table", "elsewhere"]) == 2
    assert "--create-table" in capfd.readouterr().err
    application.execute("INSERT INTO outbox (body, headers) VALUES ('x', '[1]')")
    assert run([*arguments, "--log", "orders"]) == 1
    assert "--bad dead" in capfd.readouterr().err
    assert run([*arguments, "--log", "orders", "--bad", "dead"]) == 0
    assert "1 dead row" in capfd.readouterr().out
    with open_store(store) as opened, opened.log(LogSpec("orders")).writer():
        assert run([*arguments, "--log", "orders"]) == 4
    capfd.readouterr()
    assert run(["log", "relay", "redis://x", "--log", "orders"]) == 2
    assert run(["log", "relay", f"sqlite:///{tmp_path}/none.db", "--log", "orders"]) == 3
    assert "check the path" in capfd.readouterr().err


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
