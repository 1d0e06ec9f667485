"""A session of PostgreSQL that hangs is given up, and what it does when it wakes changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from millstream.log import IdRange, LogSpec, open_store
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.backends.postgres import driver
from millstream.testing import services
from millstream.testing.databases import connected
from millstream.testing.waiting import until

pytestmark = pytest.mark.usefixtures("postgresql")  # skips where there is none
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = 'hanging' AND pid <> pg_backend_pid()"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions count as lost after a second without an answer."""
    driver._patient.cache_clear()
    monkeypatch.setattr(driver, "SILENT_SECONDS", 1.0)
    yield
    driver._patient.cache_clear()


def test_a_commit_that_hangs_in_one_session_is_done_once_by_another(impatient: None) -> None:
    with services.private("postgresql") as server, open_store(f"{server.url}hanging") as store:
        log = store.log(LogSpec("weather"))
        with connected(f"{server.url}hanging") as watcher, log.writer("importer") as writer:
            assert writer.append([b"a"], sequence=1) == IdRange(1, 1)
            hanging = [int(pid) for (pid,) in watcher.rows(SESSIONS)]
            for pid in hanging:
                os.kill(pid, signal.SIGSTOP)
            assert writer.append([b"b"], sequence=2) == IdRange(2, 2)
            for pid in hanging:
                os.kill(pid, signal.SIGCONT)
            wait_until_gone(watcher, hanging)
            assert writer.append([b"c"], sequence=3) == IdRange(3, 3)
        assert [m.body for batch in log.read() for m in batch] == [b"a", b"b", b"c"]
        assert log.verify().ok


def wait_until_gone(watcher: DatabaseConnection, pids: list[int]) -> None:
    """Until the sessions have done what they were told before they were stopped, and noticed that nobody listens."""
    until(lambda: not {int(pid) for (pid,) in watcher.rows(SESSIONS)}.intersection(pids), "the end of their sessions")
