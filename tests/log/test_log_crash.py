"""Processes that are killed, stopped and starved for real: what was confirmed is there, and nothing else moved."""

from __future__ import annotations

import contextlib
import fcntl
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TypeVar

import pytest

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, LogStore, WriterBusyError, open_store
from millstream.log.backends.database.driver import ServerError
from millstream.log.backends.nerve import is_nerve
from millstream.testing import services
from millstream.testing.databases import connected
from millstream.testing.torture import LOG, ScratchStore, TorturePlan, WatchedProcess, scratch_beside, torture
from millstream.testing.torture.checks import (
    OrderCheck,
    ReaderDelivery,
    check_confirmed,
    check_delivery,
    read_confirmed,
)
from millstream.testing.torture.plan import CONSUMER
from millstream.testing.torture.writer import FAILED, FENCED
from millstream.testing.waiting import until_allowed
from suite.sizes import sized

pytestmark = pytest.mark.crash

WRITER, READER = "millstream.testing.torture.writer", "millstream.testing.torture.reader"
PROGRAM = "support.log_program"
SPEC = LogSpec(LOG)
STORES = ["sqlite", "segments", "mysql", "postgresql", "nerve"]

Result = TypeVar("Result")


@pytest.fixture(params=STORES)
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    fixtures = {"mysql": "database", "postgresql": "postgres_database"}
    if request.param in fixtures:
        database: str = request.getfixturevalue(fixtures[request.param])
        return database
    if request.param == "nerve":
        return f"{request.getfixturevalue('queues')}?layout=nerve&shards=2"
    return f"{request.param}:///{tmp_path / 'log.db'}"


@pytest.fixture
def plan(url: str) -> TorturePlan:
    """How many processes are killed."""
    few = 6 if is_nerve(url) else 12
    return TorturePlan(kills=sized(quick=5, ci=few, long=1000), seed=2)


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_p2_durability_whatever_was_confirmed_survives_kill_9(url: str, plan: TorturePlan) -> None:
    """P1 and P3 as well: writers and readers are killed at random moments, and all that must hold is looked at."""
    report = torture(ScratchStore(url, url, lambda: None), plan)
    assert report.problems == ()
    assert report.writers_killed + report.readers_killed >= plan.kills
    assert report.packs_confirmed > report.writers_killed
    assert report.messages_delivered > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("url", ["sqlite", "segments"], indirect=True)
def test_p2_durability_what_was_confirmed_survives_kill_9_with_more_under_way(url: str) -> None:
    """Writers do not wait for each pack: ``append_nowait``, and ``durable`` for those of a while ago."""
    plan = TorturePlan(kills=sized(quick=5, ci=12, long=400), seed=16, ahead=20)
    report = torture(ScratchStore(url, url, lambda: None), plan)
    assert report.problems == ()
    assert report.packs_confirmed > report.writers_killed


@pytest.mark.smoke
def test_p3_delivery_a_killed_reader_gets_again_only_what_the_window_allows(url: str) -> None:
    with open_store(url) as store:
        with store.log(SPEC).writer() as writer:
            writer.append([b"x"] * 20_000)  # more than three readers take before they are killed, on a busy machine too
        pointer = given = 0
        for _ in range(3):
            with WatchedProcess(READER, url, 10) as reader:
                assert reader.wait_for(100)
                reader.kill()
            lines = ReaderDelivery(0, reader.lines, 0)
            began = lines.given[0][0] - 1
            assert pointer <= began <= given, "a server may take an acknowledgement in after its reader has died"
            given = lines.last_given
            delivery = ReaderDelivery(began, reader.lines, SystemClock().monotonic())
            pointer = store.log(SPEC).pointer(CONSUMER)
            assert list(check_delivery(delivery, pointer, server_was_away=False)) == []
            assert pointer <= delivery.last_given, "nothing counts as acknowledged that was not"


@pytest.mark.smoke
def test_p10_one_writer_a_living_one_is_named_and_a_killed_one_replaced_at_once(url: str) -> None:
    with open_store(url) as store, WatchedProcess(WRITER, url, 1, 1, 15, 1) as process:
        assert process.wait_for(1)
        with pytest.raises(WriterBusyError, match=rf"process {process.pid} on .* since "):
            store.log(SPEC).writer()
        assert str(process.pid) in (store.log(SPEC).info().writer or "")
        process.kill()
        with store.log(SPEC).writer() as writer:
            assert writer.append([b"mine"]) is not None


def test_p10_one_writer_one_that_was_stopped_past_its_lease_is_fenced(url: str) -> None:
    with open_store(url, lease_seconds=0.5) as store, WatchedProcess(WRITER, url, 1, 2, 0.5, 1) as process:
        assert process.wait_for(6)
        stop(process, store)
        writer = until_allowed(store.log(SPEC).writer, WriterBusyError)
        ours = writer.append([b"ours"] * 3)
        process.send(signal.SIGCONT)
        assert process.wait() == FENCED
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
            with WatchedProcess(WRITER, url, 1, 5, 0.3, 1) as first:
                assert first.wait_for(4)
                stop(first, store)
                with until_allowed(lambda: started(url, 0.3), WriterBusyError) as second:
                    first.send(signal.SIGCONT)
                    assert first.wait() == FENCED
                    assert second.wait_for(6)
        order = OrderCheck()
        assert list(order.check(store.log(SPEC))) == []
        assert order.checked == 5 * order.sequence


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_disk_full_fails_cleanly_and_the_log_goes_on_when_there_is_room(url: str) -> None:
    with open_store(url) as store, store.log(SPEC).writer() as writer:
        writer.append([b"before"])
    limit = 3 << 20
    done = subprocess.run(
        [sys.executable, "-m", WRITER, url, "1", "5000", "15", "1"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == FAILED, done.stderr
    assert "open a new one" in done.stderr
    with open_store(url) as store:
        assert list(check_confirmed(store.log(SPEC), read_confirmed(1, done.stdout.splitlines()))) == []
        with store.log(SPEC).writer() as writer:
            assert writer.append([b"after"]) is not None
        assert store.log(SPEC).verify().ok


def test_many_processes_read_while_one_writes(url: str) -> None:
    with open_store(url) as store, store.log(SPEC).writer() as writer, contextlib.ExitStack() as processes:
        writer.append([b"x"] * 100)
        stop = threading.Event()

        def keep_writing() -> None:
            while not stop.is_set():
                writer.append([b"y"] * 10)

        thread = threading.Thread(target=keep_writing)
        thread.start()
        try:
            readers = [processes.enter_context(WatchedProcess(PROGRAM, "count", url)) for _ in range(3)]
            codes = [reader.wait() for reader in readers]
        finally:
            stop.set()
            thread.join()
        for reader in readers:
            reader.kill()
    assert [(code, reader.lines) for code, reader in zip(codes, readers, strict=True)] == [(0, ["100"])] * 3


def test_processes_that_make_the_same_store_at_once_all_get_it(url: str) -> None:
    with contextlib.ExitStack() as processes:
        makers = [processes.enter_context(WatchedProcess(PROGRAM, "make", url, f"log-{n}")) for n in range(5)]
        assert all(maker.wait_for(1) for maker in makers)
        for maker in makers:
            maker.send(signal.SIGUSR1)
        assert [maker.wait() for maker in makers] == [0] * 5, makers[0].errors
    assert [maker.lines for maker in makers] == [["ready", "shared"]] * 5
    with open_store(url) as store:
        assert len(store.logs()) == 6


def test_a_follower_sees_what_another_process_appends(url: str) -> None:
    with open_store(url) as store, WatchedProcess(WRITER, url, 1, 1, 15, 1):
        with store.log(SPEC).reader("follower") as reader:
            seen = 0
            for batch in reader.batches(follow=True):
                seen += len(batch)
                if seen >= 50:
                    break
        assert seen >= 50


def test_ctrl_c_in_a_commit_ends_as_an_interrupt_and_loses_nothing_confirmed(url: str) -> None:
    with WatchedProcess(WRITER, url, 1, 3, 15, 1) as process:
        assert process.wait_for(30)
        process.send(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        process.kill()
    with open_store(url) as store:
        assert list(check_confirmed(store.log(SPEC), read_confirmed(1, process.lines))) == []
        store.log(SPEC).writer().close()


def test_a_store_handed_to_another_process_says_how_to_open_it_there(url: str) -> None:
    with open_store(url) as store, store.log(SPEC).writer() as writer, store.log(SPEC).reader("r") as reader:
        for thing in (store, writer, reader):
            with pytest.raises(TypeError, match="open"):
                thing.__reduce__()


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["mariadb?driver=text", "mariadb?layout=nerve", "postgresql"])
def test_p2_durability_whatever_was_confirmed_survives_kill_9_of_the_database(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Writer and reader are not told: they wait for the server, and go on."""
    name, mark, options = kind.partition("?")
    request.getfixturevalue(name)
    with services.private(name) as server:
        scratch = scratch_beside(f"{server.url}torture{mark}{options}", "torture-test")
        plan = TorturePlan(kills=sized(ci=6, long=200), seed=4)
        report = torture(scratch, plan, server=server)
    assert report.problems == ()
    assert report.databases_killed > 0


def stop(process: WatchedProcess, store: LogStore) -> None:
    """Stop *process* outside a transaction: inside one it would hold the store's lock for as long as it is stopped."""
    clock = SystemClock()
    deadline = clock.monotonic() + 30
    while clock.monotonic() < deadline:
        if not is_free(store.url):  # it has to run to leave its transaction: stopped again at once it never would
            continue
        process.stop()
        if is_free(store.url):
            return
        process.send(signal.SIGCONT)
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
    table = "millstream_nerve_queues" if is_nerve(url) else "millstream_logs"
    with connected(url.partition("?")[0]) as connection:
        try:
            connection.rows(f"SELECT * FROM {table} FOR UPDATE NOWAIT")
        except ServerError:
            return False
        return True


def started(url: str, lease: float) -> WatchedProcess:
    """A writer that has its lease. Raises WriterBusyError where it did not get it."""
    with open_store(url) as store:
        store.log(SPEC).writer().close()
    return WatchedProcess(WRITER, url, 1, 5, lease, 1)
