"""A worker that is killed in mid-task loses nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest
from millstream.mill.tasks import Duplicate, encode_task
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore
from millstream.testing.killed_programs import kill_after
from suite.sizes import sized

WORKER = """
import sys
import sqlalchemy as sa
from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.sql import SqlBusyError
from millstream.log import LogSpec, open_store
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.errors import NoAnswerError
from millstream.mill.manifest import Manifest
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.tasks import Duplicate
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore

folder = sys.argv[1]
clock = SystemClock()
providers = ConfiguredStores({name: LocalStore(f"{folder}/{name}") for name in "12"}, clock)
manifest = Manifest(sa.create_engine(f"sqlite:///{folder}/node.db"))
with open_store(f"sqlite:///{folder}/log.db", clock=clock) as store:
    queue = LogWorkQueue(store.log(LogSpec("low")), clock)

    def tell(tally):
        print(tally.done, flush=True)

    registry = ProcessorRegistry({Duplicate: DuplicationProcessor(providers, manifest)})
    settings = WorkerSettings(threads=2, visibility=1.0)
    WorkerManager([queue], registry, ResultSink(manifest, {}), clock, settings, on_progress=tell).run_until_drained()
    queue.close()
"""


@pytest.mark.smoke
@pytest.mark.crash
def test_p6_a_worker_killed_in_mid_task_loses_nothing(new_world: Callable[..., Any], tmp_path: Path) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "12"})
    count, kills = sized(ci=(150, 2), long=(2000, 20))
    for number in range(count):
        world.put(ItemRef("1", "s", f"item {number}"), f"body {number}".encode() * 50)
    clock = SystemClock()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        queue = LogWorkQueue(store.log(LogSpec("low")), clock)
        queue.put([encode_task(Duplicate("1", "2", "s", f"item {number}")) for number in range(count)])
        queue.put([encode_task(Duplicate("1", "9", "s", "item 0"))])
        queue.close()
    for _ in range(kills):
        kill_after([sys.executable, "-c", WORKER, str(tmp_path)], 1)  # as soon as it has settled something
    subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], check=True, capture_output=True, timeout=120)
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        queue = LogWorkQueue(store.log(LogSpec("low")), clock)
        depth = queue.depth()
        assert (depth.open, depth.dead) == (0, 1)
        assert "unknown store '9'" in queue.dead()[0].cause
        queue.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    assert Manifest(engine).count("2", "s") == count
    engine.dispose()
    for number in range(count):
        assert world.read(ItemRef("2", "s", f"item {number}")) == f"body {number}".encode() * 50
