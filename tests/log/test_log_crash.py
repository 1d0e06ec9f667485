"""Processes that are killed, stopped and starved for real: what was confirmed is there, and nothing else moved."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self, TypeVar

import pytest

from millstream.core.clock import SystemClock
from millstream.log import Log, LogSpec, LogStore, Message, WriterBusyError, open_store
from millstream.log.database.driver import ServerError
from millstream.testing import services
from millstream.testing.databases import connected

CHILDREN = Path(__file__).parent / "children"
SPEC = LogSpec("torture")
FENCED, FAILED = 7, 8

Result = TypeVar("Result")


@pytest.fixture(params=["sqlite", "segments", "mysql", "postgresql"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    fixtures = {"mysql": "database", "postgresql": "postgres_database"}
    if request.param in fixtures:
        database: str = request.getfixturevalue(fixtures[request.param])
        return database
    return f"{request.param}:///{tmp_path / 'log.db'}"


@pytest.fixture
def kills(size: str) -> int:
    """How many processes are killed."""
    return 1000 if size == "long" else 20


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_p2_durability_whatever_was_confirmed_survives_kill_9(url: str, kills: int) -> None:
    draw = random.Random(2)
    confirmed_sequence = checked = 0
    for _ in range(kills):
        with child("append.py", url, str(draw.choice([1, 7, 300])), "15", "0") as process:
            confirmed = [numbers(line) for line in lines(process, draw.randint(1, 15)) if not line.startswith("ready")]
            process.kill()
            confirmed += [numbers(line) for line in process.stdout or () if line.endswith("\n")]
        with open_store(url) as store, store.log(SPEC).writer("child") as writer:
            confirmed_sequence = max([confirmed_sequence, *(turn for turn, *_ in confirmed)])
            assert writer.sequence >= confirmed_sequence
            check_confirmed(store, confirmed)
            checked = check_sequence(store, checked, writer.sequence)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_p2_durability_holds_for_threads_that_share_commits(url: str, kills: int) -> None:
    draw = random.Random(3)
    for _ in range(max(kills // 5, 3)):
        with child("append.py", url, "3", "15", "1") as process:
            confirmed = [numbers(line) for line in lines(process, draw.randint(5, 50)) if not line.startswith("ready")]
            process.kill()
            confirmed += [numbers(line) for line in process.stdout or () if line.endswith("\n")]
        with open_store(url) as store:
            check_confirmed(store, confirmed)
            assert store.log(SPEC).verify().ok


def test_p3_delivery_a_killed_reader_gets_again_only_what_the_window_allows(url: str) -> None:
    with open_store(url) as store:
        with store.log(SPEC).writer() as writer:
            writer.append([b"x"] * 20_000)
        seen: list[int] = []
        for _ in range(3):
            with child("read.py", url) as process:
                now = [int(line) for line in lines(process, 3000)]
                process.kill()
                now += [int(line) for line in process.stdout or () if line.endswith("\n")]
            pointer = store.log(SPEC).pointer("child")
            assert now == list(range(now[0], now[-1] + 1)), "in order, without a gap"
            assert now[0] <= (seen[-1] if seen else 0) + 1, "nothing was left out"
            assert pointer <= now[-1], "nothing counts as acknowledged that was not"
            seen = now


def test_p10_one_writer_a_living_one_is_named_and_a_killed_one_replaced_at_once(url: str) -> None:
    with open_store(url) as store, child("append.py", url, "1", "15", "0") as process:
        lines(process, 1)
        with pytest.raises(WriterBusyError, match=rf"process {process.pid} on .* since "):
            store.log(SPEC).writer()
        assert str(process.pid) in (store.log(SPEC).info().writer or "")
        process.kill()
        process.wait()
        with store.log(SPEC).writer() as writer:
            assert writer.append([b"mine"]) is not None


def test_p10_one_writer_one_that_was_stopped_past_its_lease_is_fenced(url: str) -> None:
    with open_store(url, lease_seconds=0.5) as store, child("append.py", url, "2", "0.5", "0") as process:
        lines(process, 5)
        stop(process, store)
        writer = eventually(store.log(SPEC).writer)
        ours = writer.append([b"ours"] * 3)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == FENCED
        writer.append([b"ours"] * 3)
        writer.close()
        bodies = [message.body for batch in store.log(SPEC).read() for message in batch]
        assert ours is not None
        assert bodies[ours.first - 1 :] == [b"ours"] * 6, "the stopped writer stored nothing after the take-over"
        assert store.log(SPEC).verify().ok


def test_p10_one_writer_two_processes_that_fight_for_a_log_never_interleave(url: str) -> None:
    """Each stops the other past its lease in turn; every pack is whole, and each writer's packs are in order."""
    with open_store(url) as store:
        for _ in range(2):
            with child("append.py", url, "5", "0.3", "0") as first:
                lines(first, 3)
                stop(first, store)
                with eventually(lambda: started(url, "0.3")) as second:
                    first.send_signal(signal.SIGCONT)
                    assert first.wait(30) == FENCED
                    lines(second, 5)
        bodies = [tuple(map(int, m.body.split())) for batch in store.log(SPEC).read() for m in batch]
        assert bodies == [(0, turn, n) for turn in range(1, len(bodies) // 5 + 1) for n in range(5)]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_disk_full_fails_cleanly_and_the_log_goes_on_when_there_is_room(url: str) -> None:
    with open_store(url) as store, store.log(SPEC).writer() as writer:
        writer.append([b"before"])
    limit = 3 << 20 if url.startswith("sqlite") else 1 << 20
    command = [sys.executable, str(CHILDREN / "append.py"), url, "5000", "15", "0"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == FAILED, done.stderr
    assert "open a new one" in done.stderr
    confirmed = [numbers(line) for line in done.stdout.splitlines() if not line.startswith("ready")]
    with open_store(url) as store:
        check_confirmed(store, confirmed)
        with store.log(SPEC).writer() as writer:
            assert writer.append([b"after"]) is not None
        assert store.log(SPEC).verify().ok


def test_many_processes_read_while_one_writes(url: str) -> None:
    with open_store(url) as store, store.log(SPEC).writer() as writer:
        writer.append([b"x"] * 100)
        code = (
            "import sys; from millstream.log import *; s = open_store(sys.argv[1], read_only=True);"
            "print(sum(len(b) for b in s.log(LogSpec('torture'), create=False).read(1, 100)))"
        )
        readers = [subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE) for _ in range(3)]
        stop = threading.Event()

        def keep_writing() -> None:
            while not stop.is_set():
                writer.append([b"y"] * 10)

        thread = threading.Thread(target=keep_writing)
        thread.start()
        answers = [reader.communicate(timeout=60)[0] for reader in readers]
        stop.set()
        thread.join()
    assert answers == [b"100\n"] * 3


def test_processes_that_make_the_same_store_at_once_all_get_it(url: str) -> None:
    code = (
        "import sys; from millstream.log import *; sys.stdin.readline(); s = open_store(sys.argv[1]);"
        "s.log(LogSpec(sys.argv[2])).writer().append([b'x']); print(s.log(LogSpec('shared')).name)"
    )
    command = [sys.executable, "-c", code, url]
    makers = [
        subprocess.Popen([*command, f"log-{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(5)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    assert [maker.communicate(timeout=60)[0] for maker in makers] == ["shared\n"] * 5
    with open_store(url) as store:
        assert len(store.logs()) == 6


def test_a_follower_sees_what_another_process_appends(url: str) -> None:
    with open_store(url) as store, child("append.py", url, "1", "15", "0"):
        with store.log(SPEC).reader("follower") as reader:
            seen = 0
            for batch in reader.batches(follow=True):
                seen += len(batch)
                if seen >= 50:
                    break
        assert seen >= 50


def test_ctrl_c_in_a_commit_ends_as_an_interrupt_and_loses_nothing_confirmed(url: str) -> None:
    with child("append.py", url, "3", "15", "0") as process:
        confirmed = [numbers(line) for line in lines(process, 30) if not line.startswith("ready")]
        process.send_signal(signal.SIGINT)
        confirmed += [numbers(line) for line in process.stdout or () if line.endswith("\n")]
        assert process.wait(30) == -signal.SIGINT
    with open_store(url) as store:
        check_confirmed(store, confirmed)
        store.log(SPEC).writer().close()


def test_a_store_handed_to_another_process_says_how_to_open_it_there(url: str) -> None:
    with open_store(url) as store, store.log(SPEC).writer() as writer, store.log(SPEC).reader("r") as reader:
        for thing in (store, writer, reader):
            with pytest.raises(TypeError, match="open"):
                thing.__reduce__()


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["mariadb", "mariadb-binary", "postgresql"])
def test_p2_durability_whatever_was_confirmed_survives_kill_9_of_the_database(
    kind: str, kills: int, request: pytest.FixtureRequest
) -> None:
    """Writer and reader are not told: they wait for the server, and go on."""
    name, _, driver = kind.partition("-")
    request.getfixturevalue(name)
    if driver:
        pytest.importorskip("mariadb", reason="pip install 'millstream[mysql-binary]'")
    option = f"torture{'?driver=' * bool(driver)}{driver}"
    draw = random.Random(4)
    with services.private(name) as server, open_store(server.url + option) as store:
        url = store.url
        log = store.log(SPEC)
        with child("append.py", url, "7", "15", "0") as process, Follower(log) as follower:
            confirmed: list[tuple[int, ...]] = []
            for _ in range(kills // 5):
                confirmed += [numbers(line) for line in lines(process, draw.randint(5, 60)) if line[0] != "r"]
                server.kill()
                server.start()
            confirmed += [numbers(line) for line in lines(process, 20)]
            process.kill()
            confirmed += [numbers(line) for line in process.stdout or () if line.endswith("\n")]
            follower.wait_for(confirmed[-1][2])
        check_confirmed(store, confirmed)
        with log.writer("child") as writer:
            check_sequence(store, 0, writer.sequence)
            assert writer.sequence >= confirmed[-1][0]
        assert follower.seen == list(range(1, len(follower.seen) + 1)), "each id once, in order"


class Follower:
    """A reader in a thread that follows the log, whatever happens to its server."""

    def __init__(self, log: Log) -> None:
        self.seen: list[int] = []
        self._reader = log.reader("follower")
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._thread.join(60)

    def wait_for(self, last_id: int) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: self.seen and self.seen[-1] >= last_id, 60)

    def _run(self) -> None:
        for batch in self._reader.batches(follow=True):
            with self._moved:
                self.seen += range(batch.first_id, batch.last_id + 1)
                self._moved.notify_all()
            self._reader.ack(batch.ids)


@contextlib.contextmanager
def child(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of tests/log/children that is certainly gone afterwards."""
    process = subprocess.Popen([sys.executable, str(CHILDREN / name), *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        output(process).close()


def stop(process: subprocess.Popen[str], store: LogStore) -> None:
    """Stop *process* outside a transaction: inside one it would hold the store's lock for as long as it is stopped."""
    clock = SystemClock()
    deadline = clock.monotonic() + 30
    while clock.monotonic() < deadline:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        if is_free(store.url):
            return
        process.send_signal(signal.SIGCONT)
    raise TimeoutError("the process was inside a transaction each time it was stopped")


def is_free(url: str) -> bool:
    """Whether nobody is inside a transaction of the store."""
    if url.startswith(("mysql:", "postgresql:")):
        return is_free_of_writers(url)
    scheme, _, path = url.partition(":///")
    if scheme == "segments":
        with (Path(path) / "logs" / SPEC.name / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        return True
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()


def is_free_of_writers(url: str) -> bool:
    with connected(url) as connection:
        try:
            connection.rows("SELECT name FROM millstream_logs FOR UPDATE NOWAIT")
        except ServerError:
            return False
        return True


def started(url: str, lease: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """A writer that has its lease. Raises WriterBusyError where it did not get it."""
    with open_store(url) as store:
        store.log(SPEC).writer().close()
    return child("append.py", url, "5", lease, "0")


def output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next *count* lines that *process* prints."""
    return [output(process).readline() for _ in range(count)]


def numbers(line: str) -> tuple[int, ...]:
    return tuple(map(int, line.split()))


def check_confirmed(store: LogStore, confirmed: list[tuple[int, ...]]) -> None:
    """Every pack that was confirmed is stored under its ids."""
    for turn, first, last, thread in confirmed:
        found = [m.body for batch in store.log(SPEC).read(first, last) for m in batch]
        assert found == [b"%d %d %d" % (thread, turn, n) for n in range(last - first + 1)]


def check_sequence(store: LogStore, checked: int, sequence: int) -> int:
    """From id *checked* + 1 on, the packs follow one another without a gap or a repetition, up to *sequence*."""
    log = store.log(SPEC)
    assert log.verify().ok
    found: list[Message] = [m for batch in log.read(checked + 1) for m in batch]
    places = [tuple(map(int, m.body.split())) for m in found]
    for before, after in itertools.pairwise(places):
        assert after in ((0, before[1], before[2] + 1), (0, before[1] + 1, 0))
    if places:
        assert places[-1][1] == sequence
    return max(log.last_id - 1, 0)


def eventually(call: Callable[[], Result], seconds: float = 30) -> Result:
    """What *call* returns once it no longer raises WriterBusyError."""
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    pause = threading.Event()
    while True:
        try:
            return call()
        except WriterBusyError:
            if clock.monotonic() > deadline:
                raise
            pause.wait(0.02)
