"""A day of samples in the database of the node: what is kept, what is deleted, and what a restart shows."""

from __future__ import annotations

import errno
import socket
import threading
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.sql import writing
from millstream.node import Node
from millstream.node.members.node_members import NodeMembers
from millstream.settings import load_settings
from millstream.status.disk_usage import (
    DATA_FOLDER,
    LOG_STORE,
    Disk,
    disks_by_pace,
    find_disks,
    own_folders,
    usage_by_growth,
)
from millstream.status.history import MINUTES, MinuteSample, StatusHistory
from millstream.status.models import QueueSample, Sample
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.verdict.judge_machine import machine_issues
from millstream.status.verdict.store_watch import DiskSpace, StoreAnswer, StoreState

MINUTE = 60 * MICROSECONDS
BEGIN = 1_800_000_000 * MICROSECONDS


def minute(number: int, **more: object) -> MinuteSample:
    at = BEGIN + number * MINUTE
    counters = Sample(at=at, messages=number, batches=0, anchors=0, open_tasks=number % 7, dead_tasks=0)
    queues = {"audit": QueueSample(at, number, 0, 0, 0)}
    return MinuteSample(counters=counters, **{"queues": queues, **more})  # type: ignore[arg-type]


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    return sa.create_engine(f"sqlite:///{tmp_path}/node.db")


def rows_of(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(sa.text("SELECT count(*) FROM console_history")) or 0)


def test_a_day_is_kept_and_no_more(engine: sa.Engine) -> None:
    history = StatusHistory(engine)
    for number in (0, 1, 1, 2, MINUTES, MINUTES + 1):
        history.add(minute(number))
    assert rows_of(engine) == 3
    now = BEGIN + (MINUTES + 1) * MINUTE
    assert [one.counters.messages for one in StatusHistory(engine).read(now)] == [2, MINUTES, MINUTES + 1]
    assert StatusHistory(engine).read(now + MINUTES * MINUTE) == []


def test_rows_from_the_future_go_when_the_clock_was_set_back(engine: sa.Engine) -> None:
    history = StatusHistory(engine)
    history.add(minute(500))
    assert history.read(BEGIN) == []
    history.add(minute(3))
    assert [one.counters.messages for one in history.read(BEGIN + 500 * MINUTE)] == [3]


def test_a_row_that_cannot_be_read_is_left_out_with_a_warning(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    history = StatusHistory(engine)
    for number in range(3):
        history.add(minute(number))
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE console_history SET sample = substr(sample, 1, 40) WHERE minute = :minute"),
            {"minute": BEGIN // MINUTE + 1},
        )
    assert [one.counters.messages for one in history.read(BEGIN + 3 * MINUTE)] == [0, 2]
    assert "rows of the chart history that cannot be read and are skipped: 1" in caplog.text


def test_a_database_that_refuses_the_row_is_reported_once(engine: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    history = StatusHistory(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE console_history RENAME TO elsewhere"))
    history.add(minute(1))
    history.add(minute(2))
    assert caplog.text.count("cannot write the chart history") == 1
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE elsewhere RENAME TO console_history"))
    history.add(minute(3))
    assert rows_of(engine) == 1


def test_charts_go_on_after_a_restart(tmp_path: Path) -> None:
    settings, _ = load_settings({"data": str(tmp_path / "node")})
    clock = VirtualClock(BEGIN)
    for restart in range(2):
        with Node.open(settings, clock, create=True) as node:
            poller = StatusPoller(NodeView(node), history=StatusHistory(node.databases.own))
            assert len(poller.history(coarse=True)) == 3 * restart
            for _ in range(3):
                for _ in range(3):
                    poller.sample()
                    clock.advance(20)
            clock.advance(3600)
    minutes = [(sample.at - BEGIN) // MINUTE for sample in poller.history(coarse=True)]
    assert minutes == [0, 1, 2, 63, 64, 65]
    assert {sample.at - BEGIN >= 63 * MINUTE for sample in poller.history()} == {True}
    names = {name for one in StatusHistory(poller_engine(tmp_path)).read(clock.now()) for name in one.queues}
    assert all(len(poller.queue_history(name, coarse=True)) == 6 for name in names)


def poller_engine(folder: Path) -> sa.Engine:
    return sa.create_engine(f"sqlite:///{folder}/node/node.db")


def test_the_disk_that_is_full_first_comes_first() -> None:
    now = BEGIN + 3600 * MICROSECONDS
    past = [minute(0, free={"/": 1_000, "/data": 900, "/idle": 50}, sizes={"log a": 10, "log b": 500})]
    disks = [Disk(mount=mount, holds=(), free=free, total=2_000) for mount, free in
             (("/", 800), ("/data", 300), ("/idle", 50), ("/new", 7))]  # fmt: skip
    found = disks_by_pace(disks, past, now)
    assert [(one.mount, one.used_since) for one in found] == [("/data", 600), ("/", 200), ("/new", None), ("/idle", 0)]
    assert [one.full_in_seconds for one in found[:2]] == [1_800, 14_400]
    assert disks_by_pace(disks, past, BEGIN + 60 * MICROSECONDS)[0].full_in_seconds is None  # too soon to say
    grown = usage_by_growth({"log b": 510, "log a": 400, "store c": 9}, past, now)
    assert [(one.part, one.grown) for one in grown] == [("log a", 390), ("log b", 10), ("store c", None)]


def test_a_folder_whose_disk_does_not_answer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> object:
        raise OSError(errno.ESTALE, "stale file handle")

    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as node:
        assert [disk.holds for disk in find_disks(node, ())] == [[DATA_FOLDER]]
        monkeypatch.setattr("os.statvfs", gone)
        assert find_disks(node, ()) == []


def test_a_row_waits_in_the_line_of_writers(engine: sa.Engine) -> None:
    history = StatusHistory(engine)
    adding = threading.Thread(target=history.add, args=[minute(0)])
    with writing(engine):
        adding.start()
        assert rows_of(engine) == 0
    adding.join()
    assert rows_of(engine) == 1


def test_the_pace_of_a_disk_is_not_taken_from_members_on_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host has a disk at `/`, and the history is that of whichever member wrote it first."""
    monkeypatch.setattr(NodeMembers, "is_shared", True)
    with Node.open(load_settings({"data": str(tmp_path)})[0], VirtualClock(BEGIN), create=True) as node:
        (disk,) = find_disks(node, ())
        for number, host in enumerate(("", "another-host", socket.gethostname())):
            history = StatusHistory(node.databases.own)
            history.add(minute(number, host=host, free={disk.mount: disk.free + (number + 1) * 1_000_000}))
        node.clock.advance(3600)  # type: ignore[attr-defined]
        poller = StatusPoller(NodeView(node), free_bytes=lambda _: disk.free, history=history)
        assert [one.used_since for one in poller.disks()] == [3_000_000]


def test_disks_of_stores_are_not_asked_for_beside_the_watch_of_the_stores(tmp_path: Path) -> None:
    """One that hangs would hold up the counters, and what is known of the process."""
    asked = list[Path]()

    def free_bytes(folder: Path) -> int:
        asked.append(folder)
        return 1_000

    space = DiskSpace(device=-1, mount="/nfs", free=7, total=9)
    states = [
        StoreState(store="well", answer=StoreAnswer(disk=space)),
        StoreState(store="hangs", answer=StoreAnswer(disk=space), hangs=True),
        StoreState(store="away", answer=StoreAnswer(problem="it does not answer")),
        StoreState(store="new"),
    ]
    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as node:
        found = find_disks(node, states, free_bytes)
    assert [(one.holds, one.free) for one in found] == [([DATA_FOLDER], 1_000), (["store well"], 7)]
    assert asked == [tmp_path]


def test_a_log_store_elsewhere_has_a_disk_of_its_own_that_is_judged(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    environment = {"MILLSTREAM_LOG__STORE": f"segments:///{tmp_path}/logs/store"}
    settings, _ = load_settings({"data": str(tmp_path / "node")}, environment=environment)
    with Node.open(settings, create=True) as node:
        poller = StatusPoller(NodeView(node))
        assert dict(own_folders(node)) == {DATA_FOLDER: node.folder, LOG_STORE: tmp_path / "logs" / "store"}
        (disk,) = poller.disks()
        assert disk.holds == [DATA_FOLDER, LOG_STORE] and disk.has_logs
        disks = [Disk(mount="/logs", holds=[LOG_STORE], free=1_000_000, total=2_000_000)]
        facts = msgspec.structs.replace(poller.facts(), disks=disks)
        assert [(one.kind, one.what) for one in machine_issues(facts)] == [
            ("disk", "the disk of the log store has 1.0 MB free")
        ]
