"""What the package's first page shows runs as shown; background chores end with those who need them."""

from __future__ import annotations

import doctest
import gc
import threading
import weakref

import pytest

import millstream.log
from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import LogSpec, open_store
from millstream.log.runtime.scheduler_thread import SchedulerThread
from millstream.testing.waiting import until


def test_the_example_of_the_package_runs() -> None:
    found = doctest.testmod(millstream.log)
    assert found.attempted > 0
    assert found.failed == 0


def chores() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name in ("millstream-log-scheduler", "millstream-log-renewals")
    ]


def test_a_store_that_was_dropped_leaves_no_thread_behind() -> None:
    others = set(chores())  # stores that other tests dropped may end theirs meanwhile
    log = open_store("memory://").log(LogSpec("weather"))
    log.writer().append([b"a"])
    (own,) = set(chores()) - others
    del log
    gc.collect()
    assert own not in chores()


def test_a_log_outlives_the_name_of_its_store() -> None:
    log = open_store("memory://").log(LogSpec("weather"))
    gc.collect()
    with log.writer() as writer:
        ids = writer.append_nowait([b"a"])
        assert ids is not None
        writer.durable(ids.last, timeout=30)


class Chore:
    def __init__(self) -> None:
        self.done = threading.Event()

    def fail(self) -> None:
        raise ValueError("a chore that fails")

    def leave(self) -> None:
        raise SystemExit("a chore that ends its thread")

    def do(self) -> None:
        self.done.set()


def test_a_chore_that_fails_does_not_stop_the_others() -> None:
    scheduler, chore = SchedulerThread(SystemClock()), Chore()
    scheduler.after(0, chore.fail)
    scheduler.after(0, chore.leave)
    scheduler.after(0, chore.do)
    assert chore.done.wait(30)
    scheduler.close()
    scheduler.after(0, chore.fail)


def test_what_was_dropped_is_not_called() -> None:
    scheduler, last = SchedulerThread(SystemClock()), Chore()
    dropped = Chore()
    done = dropped.done
    scheduler.after(0.05, dropped.do)
    del dropped
    gc.collect()
    scheduler.after(0.06, last.do)
    assert last.done.wait(30)
    assert not done.is_set()
    scheduler.close()


def test_what_was_dropped_after_it_was_called_is_not_kept_alive() -> None:
    scheduler, chore = SchedulerThread(VirtualClock()), Chore()
    dropped = weakref.ref(chore)
    scheduler.after(0, chore.do)
    assert chore.done.wait(30)
    del chore
    until(lambda: dropped() is None, "the end of the object")
    scheduler.close()


def test_a_thread_that_could_not_be_started_is_started_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    scheduler, first, second = SchedulerThread(SystemClock()), Chore(), Chore()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            scheduler.after(0, first.do)
    scheduler.after(0, second.do)
    assert first.done.wait(30)
    assert second.done.wait(30)
    scheduler.close()
