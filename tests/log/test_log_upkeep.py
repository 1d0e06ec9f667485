"""Logs are moved and trimmed by their rules: by a command, and by a node that runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import LogSpec, LogStore, Retention, Tiering
from millstream.log.backends.memory import MemoryBackend
from millstream.log.upkeep.rules import LogRule
from millstream.log.upkeep.upkeep_thread import UpkeepThread, run_upkeep
from millstream.stores import StoreUnavailableError
from millstream.stores.tiers import open_log_store as open_tiered
from millstream.testing.waiting import until
from support.tiered_logs import SPEC, URL, Cloud, fill, ids_of


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def store(clock: VirtualClock, cloud: Cloud) -> Iterator[LogStore]:
    with LogStore(MemoryBackend(clock), clock, open_objects=cloud.open) as store:
        yield store


def test_the_upkeep_moves_and_trims_every_log_and_one_that_fails_keeps_no_other_back(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with open_tiered(f"sqlite:///{tmp_path / 'log.db'}", clock) as store:
        for name in ("a", "b", "c"):
            log = fill(store.log(LogSpec(name, compression="plain")))
            log.set_retention(Retention(max_count=150))
            if name != "c":
                log.set_tiering(Tiering(f"file://{tmp_path / name}", segment_bytes=8000))
        (tmp_path / "a" / "tier").rmdir()
        (tmp_path / "a" / "tier").write_bytes(b"in the way")
        found = {done.log: done for done in run_upkeep(store, clock)}
        assert found["a"].error is not None
        assert store.log(LogSpec("a")).first_id == 1
        moved, trimmed = found["b"].moved, found["b"].trimmed
        assert moved is not None
        assert trimmed is not None
        assert (moved.objects > 2, trimmed.first_id, found["b"].error) == (True, 51, None)
        assert (found["c"].moved, store.log(LogSpec("c")).first_id) == (None, 51)
        (tmp_path / "a" / "tier").unlink()
        (tmp_path / "a" / "tier").mkdir()
        assert all(done.error is None for done in run_upkeep(store, clock))
        assert store.log(LogSpec("a")).first_id == 51


def test_upkeep_runs_at_once_and_then_each_time_that_has_passed(store: LogStore, clock: VirtualClock) -> None:
    log = fill(store.log(SPEC))
    with UpkeepThread(store, clock, [LogRule("*", max_count=150)], seconds=60):
        until(lambda: log.first_id == 51, "the first turn")
        fill(log)
        assert log.first_id == 51
        until(lambda: clock.advance(60) or log.first_id == 251, "the second turn")


def test_what_cannot_be_done_is_said_once_and_tried_again(store: LogStore, clock: VirtualClock, cloud: Cloud) -> None:
    log, said = fill(store.log(SPEC)), list[str]()
    real, cloud.store = cloud.store, (away := Away())
    with UpkeepThread(store, clock, [LogRule("*", tier=URL, segment_bytes=8000)], seconds=60, say=said.append):
        until(lambda: clock.advance(60) or away.calls > 3, "some turns")
        assert [line.partition(":")[0] for line in said] == ["upkeep of weather failed"]
        cloud.store = real
        until(lambda: clock.advance(60) or cloud.names()[2:], "the objects")
    assert len(said) == 1
    assert ids_of(log) == list(range(1, 201))


class Away:
    """A provider that does not answer."""

    url = "memory://tier"
    calls = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_: object, **__: object) -> None:
            self.calls += 1
            raise StoreUnavailableError("it does not answer")

        return refuse


def test_a_turn_that_is_stopped_begins_no_further_object_and_the_next_goes_on(store: LogStore, cloud: Cloud) -> None:
    log = fill(store.log(SPEC))
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    assert log.move_blocks(stopped=lambda: len(cloud.names()) >= 2).objects == 2
    log.set_retention(Retention(max_count=150))
    (done,) = run_upkeep(store, SystemClock(), stopped=lambda: len(cloud.names()) >= 3)
    assert (done.moved is not None and done.moved.objects, done.trimmed, log.first_id) == (1, None, 1)
    (done,) = run_upkeep(store, SystemClock())
    assert (done.error, log.first_id) == (None, 51)
    assert ids_of(log) == list(range(51, 201))


def test_a_node_that_serves_moves_and_trims_its_logs_by_the_settings_and_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text(f"""
        [log]
        upkeep = "50ms"
        [[log.rules]]
        log = "weather"
        max_count = 150
        tier = "file://{tmp_path / "cold"}"
        segment_bytes = "8kB"
        """)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_tiered(url) as store:
        log = fill(store.log(SPEC))
        kept = fill(store.log(LogSpec("system:queue.bit", compression="plain", kind="queue")))
        command = [sys.executable, "-m", "millstream", "serve", "--broker", "127.0.0.1:0", "--data", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
            try:
                until(lambda: log.first_id == 51 or node.poll() is not None, "what the settings ask for")
                fill(log)
                until(lambda: log.first_id == 251 or node.poll() is not None, "the same of later messages")
                node.send_signal(signal.SIGTERM)
                out, errors = node.communicate(timeout=30)
            finally:
                node.kill()
        first, *others = (json.loads(line)["message"] for line in errors.splitlines())
        assert (node.returncode, first[:9], others) == (0, "stopping:", ["stopped"]), errors
        assert out.startswith("broker ready on ")
        info = log.info()
        assert info.tier is not None
        assert info.tier.objects >= 1
        assert (info.first_id, info.last_id, ids_of(log)) == (251, 400, list(range(251, 401)))
        assert (kept.first_id, log.verify(deep=True).ok) == (1, True)
