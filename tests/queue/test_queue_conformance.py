"""The work queue on the log passes the shipped suite and the shipped machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from millstream.core.clock import VirtualClock
from millstream.log import LogSpec, open_store
from millstream.queue import LogWorkQueue, WorkQueue
from millstream.testing.queue_machine import OpenQueue, queue_machine
from millstream.testing.queues import WorkQueueConformance
from suite.sizes import machine


class LogQueueConformance(WorkQueueConformance):
    """Keeps the stores that a test opens, and closes them when it is over."""

    url = "sqlite:///{folder}/log.db"
    snapshot_after = 5_000

    @pytest.fixture(autouse=True)
    def stores(self) -> Iterator[None]:
        with ExitStack() as self.opened:
            yield

    def open_queue(self, folder: Path, name: str, clock: VirtualClock) -> WorkQueue:
        store = self.opened.enter_context(open_store(self.url.format(folder=folder)))
        return LogWorkQueue(store.log(LogSpec(name)), clock, snapshot_after=self.snapshot_after)


class TestQueueOnSqlite(LogQueueConformance):
    pass


class TestQueueWithManySnapshots(LogQueueConformance):
    snapshot_after = 3


class TestQueueInMemory(LogQueueConformance):
    url = "memory://"
    survives_close = False


@pytest.mark.long
@pytest.mark.parametrize("snapshot_after", [5, 5_000])
def test_p6_a_queue_does_what_the_model_does(snapshot_after: int) -> None:
    numbers = itertools.count()
    store = open_store("memory://")

    def make() -> OpenQueue:
        log = store.log(LogSpec(f"queue-{next(numbers)}"))
        return lambda clock: LogWorkQueue(log, clock, snapshot_after=snapshot_after)

    run_state_machine_as_test(queue_machine(make), settings=machine(ci=40, long=1000, steps=40))
    store.close()
