"""A producer that is killed in mid-loop: a kill costs at most a bite twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mill_looping import fill, numbered, stale, take

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore
from millstream.testing.killed_programs import kill_after
from suite.sizes import sized

STALE = BITE = 20
"""Deletes of a space, all of which are one bite, and the items of each of its other bites."""

PRODUCER = """
import itertools
import signal
import sys
from pathlib import Path
import sqlalchemy as sa
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.mill.producers import duplication
from millstream.mill.producers.duplication import DuplicationMorsel, DuplicationProducer
from millstream.mill.producers.producer_loop import ProducerLoop
from millstream.core.documents import FileDocument
from millstream.mill.producers.state import StateDocument
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.configured_stores import ConfiguredStores
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore

folder, duplication.GROUP = Path(sys.argv[1]), int(sys.argv[2])
bites, last = itertools.count(1), int(sys.argv[3])

def tell(run):
    print(run.tasks, flush=True)
    if next(bites) == last:
        signal.pause()

clock = SystemClock()
providers = ConfiguredStores({name: LocalStore(folder / name) for name in "12"}, clock)
manifest = Manifest(sa.create_engine(f"sqlite:///{folder}/node-0.db"))
policies = Policies({"me": Policy("me", {}, (Pair("1", "2"),))})
with open_store(f"sqlite:///{folder}/log.db", clock=clock) as store:
    queue = LogWorkQueue(store.log(LogSpec("low")), clock)
    producer = DuplicationProducer(lambda: policies, providers, manifest, queue)
    file = StateDocument(FileDocument(folder / "state.json"), DuplicationMorsel)
    run = ProducerLoop(file, producer, queue, clock, frequency=10**12, most=10**6, on_progress=tell).run()
    print(run.outcome, flush=True)
    queue.close()
"""


@pytest.mark.smoke
@pytest.mark.crash
def test_p6_a_producer_killed_in_mid_loop_leaves_nothing_out(new_world: Callable[..., Any], tmp_path: Path) -> None:
    counts, kills = sized(ci=({"a": 1_010, "b": 10}, 3), long=({"a": 10_000, "b": 10_000}, 40))
    world = new_world({name: LocalStore(tmp_path / name) for name in "12"})
    for space, count in counts.items():
        fill(world, "1", space, numbered(count))
        stale(world, space, STALE)
    command = [sys.executable, "-c", PRODUCER, str(tmp_path), str(BITE)]
    for kill in range(kills):
        after = kill % 3 + 1
        kill_after([*command, str(after + 5)], after)  # it waits there, so that the loop is not done before the kills
    done = subprocess.run([*command, "0"], check=True, capture_output=True, timeout=120)
    assert done.stdout.split()[-1] == b"done"
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=SystemClock()) as store:
        queue = LogWorkQueue(store.log(LogSpec("low")), SystemClock())
        tasks = [(task.space, task.content_id) for task in take(queue)]
        queue.close()
    gone = [f"stale {number:03d}" for number in range(STALE)]
    assert set(tasks) == {(space, name) for space, count in counts.items() for name in numbered(count) + gone}
    assert len(tasks) - len(set(tasks)) <= kills * BITE  # at most one bite twice for each kill
    for space in counts:
        mine = [name for where, name in tasks if where == space]
        last_delete = min(index for index, name in enumerate(mine) if name == gone[-1])
        assert mine.index("0000") > last_delete
