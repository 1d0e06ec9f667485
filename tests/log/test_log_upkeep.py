"""Logs are moved and trimmed by their rules: by a command, and by a node that runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import DamagedLogError, LogSpec, LogStore, Retention, StorageFullError, Tiering
from millstream.log.backend import Head
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.probe import RECORD
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.upkeep.rules import LogRule
from millstream.log.upkeep.upkeep_thread import UpkeepThread, run_upkeep
from millstream.stores import StoreUnavailableError
from millstream.stores.tiers import open_log_store as open_tiered
from millstream.testing.object_bucket import MemoryBucket
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
        assert store.log(LogSpec("a")).first_id == 51, "it is trimmed although it cannot be moved"
        moved, trimmed = found["b"].moved, found["b"].trimmed
        assert moved is not None
        assert trimmed is not None
        assert (moved.objects > 2, trimmed.first_id, found["b"].error) == (True, 51, None)
        assert (found["c"].moved, store.log(LogSpec("c")).first_id) == (None, 51)
        (tmp_path / "a" / "tier").unlink()
        (tmp_path / "a" / "tier").mkdir()
        assert all(done.error is None for done in run_upkeep(store, clock))
        assert store.log(LogSpec("a")).info().tier is not None


@pytest.mark.parametrize("kind", ["segments", "objects"])
def test_a_damaged_log_keeps_no_other_from_being_trimmed_and_is_told(tmp_path: Path, kind: str) -> None:
    bucket, clock, said = MemoryBucket(), VirtualClock(), list[str]()
    bucket.put(RECORD, b"{}")

    def opened() -> LogStore:
        if kind == "segments":
            return LogStore(SegmentsBackend(tmp_path / "logs", clock), clock)
        return LogStore(ObjectsBackend(bucket, clock), clock)

    with opened() as store:
        for name in ("a", "b", "c"):
            fill(store.log(LogSpec(name, compression="plain"))).set_retention(Retention(max_count=150))
    if kind == "segments":
        (tmp_path / "logs" / "logs" / "b" / "states").write_bytes(b"damaged")
    else:
        bucket.objects["logs/b"] = b"damaged"
    with opened() as store:
        assert dict(store.kinds()) == {"a": "application", "b": "unknown", "c": "application"}
        with UpkeepThread(store, clock, seconds=60, say=said.append):
            until(lambda: store.log(LogSpec("c")).first_id == 51, "the log after the damaged one")
        assert store.log(LogSpec("a")).first_id == 51
    (line,) = said
    assert line.startswith("upkeep of b failed: ")
    assert "damaged" in line or "not a journal" in line


def test_objects_of_other_programs_beside_the_logs_of_a_bucket_are_no_logs(clock: VirtualClock) -> None:
    bucket = MemoryBucket()
    bucket.put(RECORD, b"{}")
    for name in ("", "AWSLogs/1/x", "my file", ".hidden", "%FF"):
        bucket.put(f"logs/{name}", b"of another program")
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        fill(store.log(SPEC)).set_retention(Retention(max_count=150))
        assert dict(store.kinds()) == {"weather": "application"}
        assert [done.error for done in run_upkeep(store, clock)] == [None]
        assert store.log(SPEC).first_id == 51


def test_a_log_whose_kind_does_not_go_with_its_name_keeps_no_other_from_being_trimmed(clock: VirtualClock) -> None:
    backend = MemoryBackend(clock)
    for name in ("ledger", "system:ledger"):
        backend.create(name, kind="ledger")
    with LogStore(backend, clock) as store:
        fill(store.log(SPEC)).set_retention(Retention(max_count=150))
        failed, trimmed = run_upkeep(store, clock)
        assert (failed.log, trimmed.error, store.log(SPEC).first_id) == ("ledger", None, 51)
        assert "invalid name 'ledger' for a log of kind 'ledger'" in (failed.error or "")


def test_a_log_that_fails_again_after_it_was_well_is_told_again(clock: VirtualClock) -> None:
    class Damaged(MemoryBackend):
        is_damaged, looks = True, 0

        def head(self, log: str) -> Head:
            self.looks += 1
            if self.is_damaged:
                raise DamagedLogError("it is damaged")
            return super().head(log)

    backend, said = Damaged(clock), list[str]()
    with LogStore(backend, clock) as store:
        store.log(SPEC)
        with UpkeepThread(store, clock, seconds=60, say=said.append):
            for is_damaged in (True, False, True):
                backend.is_damaged, looks = is_damaged, backend.looks
                until(lambda looks=looks: clock.advance(60) or backend.looks > looks + 20, "some turns")
    assert said == ["upkeep of weather failed: it is damaged"] * 2


def test_a_folder_for_temporary_files_that_is_full_or_gone_keeps_no_log_from_being_trimmed(
    store: LogStore, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        log = fill(store.log(LogSpec(name, compression="plain")))
        log.set_retention(Retention(max_count=150))
        log.set_tiering(Tiering(URL, segment_bytes=8000))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for done in run_upkeep(store, clock):
        assert "cannot write a temporary file" in (done.error or "")
        assert str(tmp_path / "gone") in (done.error or "")
        assert store.log(LogSpec(done.log)).first_id == 51
    monkeypatch.undo()
    assert [done.error for done in run_upkeep(store, clock)] == [None, None]


def test_nothing_is_trimmed_by_an_old_rule_if_the_new_one_cannot_be_stored(clock: VirtualClock) -> None:
    class Full(MemoryBackend):
        is_full = False

        def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
            if self.is_full:
                raise StorageFullError("the disk is full")
            return super().put_state(log, key, value, version=version)

    backend = Full(clock)
    with LogStore(backend, clock) as store:
        log = fill(store.log(SPEC))
        log.set_retention(Retention(max_count=50))
        backend.is_full = True
        (done,) = run_upkeep(store, clock, [LogRule("*", max_count=150)])
        assert (done.error, done.trimmed) == ("the disk is full", None)
        backend.is_full = False
        list(run_upkeep(store, clock, [LogRule("*", max_count=150)]))
        assert log.first_id == 51


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
