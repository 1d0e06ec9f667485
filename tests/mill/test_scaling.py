"""Recommended number of workers: never 0 while a task waits, within the settings, and the same wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.cli.main import run
from millstream.log import open_store
from millstream.mill.settings import SCALED_QUEUES, QueueScalingSettings
from millstream.mill.tasks import QueueName
from millstream.mill.workers.pools import POOLS
from millstream.mill.workers.scaling import DEFAULT_SCALING, recommended, recommended_workers, scaling_of
from millstream.queue import LogWorkQueue, queue_log
from millstream.queue.protocol import Depth

COUNTS = st.integers(0, 20_000)
SETTINGS = st.builds(
    QueueScalingSettings,
    least=st.none() | st.integers(0, 5),
    most=st.none() | st.integers(5, 20),
    tasks_per_worker=st.none() | st.integers(1, 5_000),
)


def depth(ready: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0) -> Depth:
    return Depth(ready=ready, leased=leased, delayed=delayed, dead=dead, exact=True, as_of=0)


@given(
    st.sampled_from(sorted(DEFAULT_SCALING)), st.dictionaries(st.sampled_from(list(QueueName)), SETTINGS), COUNTS,
    COUNTS, COUNTS, COUNTS,
)  # fmt: skip
@example("duplication-low", {}, 6_006, 0, 0, 0)
@example("bit-integrity", {}, 3_000, 0, 0, 0)
@example("repair", {}, 0, 0, 1, 0)
def test_a_queue_with_open_tasks_gets_a_worker_and_zero_means_that_nothing_waits(
    name: str,
    settings: Mapping[str, QueueScalingSettings],
    ready: int,
    leased: int,
    delayed: int,
    dead: int,
) -> None:
    scaling = scaling_of(settings)[name]
    now = depth(ready, leased, delayed, dead)
    workers = recommended_workers(now, scaling)
    assert (workers >= 1 if now.open else workers == scaling.least) and workers <= scaling.most
    assert recommended_workers(depth(ready + 1, leased, delayed, dead), scaling) >= workers
    assert recommended({name: now, "another": now}, scaling_of(settings)) == {name: workers}


@pytest.mark.parametrize(
    ("name", "ready", "workers"),
    [("audit", 0, 0), ("audit", 1_001, 2), ("duplication-high", 501, 2), ("duplication-low", 1, 1),
     ("duplication-low", 5_001, 2), ("duplication-low", 10**6, 10), ("bit-report", 10**6, 1), ("repair", 0, 0)],
)  # fmt: skip
def test_a_worker_is_added_for_each_share_of_tasks_up_to_the_maximum(name: str, ready: int, workers: int) -> None:
    assert recommended_workers(depth(ready), DEFAULT_SCALING[name]) == workers


def test_every_queue_that_a_pool_serves_has_a_recommended_number_of_workers() -> None:
    assert {queue.value for queues in POOLS.values() for queue in queues} == set(DEFAULT_SCALING) == set(SCALED_QUEUES)


def test_the_command_line_applies_the_settings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open_store(f"sqlite:///{tmp_path}/log.db") as store, LogWorkQueue(store.log(queue_log("repair"))) as queue:
        queue.put([b"task"] * 60)
    assert run(["queue", "depth", "--data", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "repair  60 ready  0 leased  0 delayed  0 dead  1 recommended worker\n"
    (tmp_path / "millstream.toml").write_text("[mill.scaling.repair]\ntasks_per_worker = 20\n")
    assert run(["queue", "depth", "repair", "--json", "--data", str(tmp_path)]) == 0
    assert json.loads(capfd.readouterr().out)["desired_workers"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mill.scaling.repairs]\nmost = 3\n", "unknown queue 'repairs'; the queues are audit, duplication-high"),
        ("[mill.scaling.repair]\nleast = 4\nmost = 3\n", "most (3) must not be less than least (4)"),
        ("[mill.scaling.repair]\ntasks_per_worker = 0\n", "tasks_per_worker"),
        ("[mill.scaling.repair]\nmost = 0\n", "most"),
    ],
)
def test_a_wrong_scaling_is_refused_with_its_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "millstream.toml").write_text(text)
    assert run(["queue", "depth", "--data", str(tmp_path)]) != 0
    error = capfd.readouterr().err
    assert message in error and "scaling" in error and "millstream.toml" in error
