"""Processes for small files: the same answers as without them, whoever of them is killed or told to end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from millstream.core.clock import VirtualClock
from millstream.settings import SettingsError, load_settings
from millstream.stores import (
    FolderStore,
    ItemInfo,
    LocalStore,
    MountedStore,
    StoreError,
    StoreUnavailableError,
    open_provider,
)
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.bulk import SMALL, NewItem
from millstream.stores.processes import child_pool
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.testing.store_content import ODD_IDS
from millstream.testing.waiting import until
from suite.engines import open_engine
from suite.sizes import sized

Answer = TypeVar("Answer")

SELF_AND_PIPES = """
import sys, time
from millstream.stores import LocalStore
from millstream.stores.processes.child_pool import BulkProcesses
processes = BulkProcesses(2, worth=1)
store = LocalStore(sys.argv[1], processes=processes)
store.create_space("s")
store.bulk.infos("s", ["a"])
while len(processes.pids) < 2:
    time.sleep(0.01)
print(*processes.pids, flush=True)
sys.stdin.read()
"""


def new(name: str, body: bytes = b"body", /, **properties: str) -> NewItem:
    return NewItem(name, body, hashlib.sha256(body).hexdigest(), "text/plain", properties)


def lives(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextlib.contextmanager
def started(count: int) -> Iterator[BulkProcesses]:
    """Processes that are up."""
    with BulkProcesses(count, worth=1) as processes:
        assert processes.ask(b"", 1) is None, "none is up at once"
        until(lambda: len(processes.pids) == count)
        yield processes


@pytest.fixture
def processes() -> Iterator[BulkProcesses]:
    with started(1) as one:
        yield one


@pytest.fixture
def store(tmp_path: Path, processes: BulkProcesses) -> LocalStore:
    made = LocalStore(tmp_path / "store", processes=processes)
    made.create_space("s")
    return made


def told(answers: Any) -> list[object]:
    """Answers without what differs from store to store."""
    said = []
    for one in answers:
        if isinstance(one, StoreError):
            said.append((type(one), str(one).replace("/one", "/two")))
        elif isinstance(one, ItemInfo):
            said.append((one.content_id, one.size, one.checksums, one.mimetype, dict(one.properties)))
        else:
            said.append(one)
    return said


@pytest.mark.parametrize("seed", range(4))
def test_what_processes_do_is_what_is_done_without_them(tmp_path: Path, processes: BulkProcesses, seed: int) -> None:
    draw = random.Random(seed)
    there, here = LocalStore(tmp_path / "one", processes=processes), LocalStore(tmp_path / "two")
    for store in (there, here):
        store.create_space("s")
    names = [*draw.sample(ODD_IDS, 8), *(f"folder/{n}" for n in range(20)), "bad\0id", "lone \ud800"]
    for _ in range(3):
        items = [new(name, draw.randbytes(draw.randrange(9000)), p=name) for name in draw.sample(names, 12)]
        items.append(NewItem("wrong", b"body", "0" * 64))
        space = draw.choice(["s", "s", "none"])
        assert told(there.bulk.put(space, items)) == told(here.bulk.put(space, items))
        for act in ("infos", "read", "hashes"):
            assert told(getattr(there.bulk, act)("s", names)) == told(getattr(here.bulk, act)("s", names))
    sums = [info.checksum() if isinstance(info, ItemInfo) else None for info in here.bulk.infos("s", names)]
    expected = [draw.choice([sha256, None, "0" * 64]) for sha256 in sums]
    apart, own = (read.readings("s", names, expected) for read in (there.bulk, here.bulk))
    assert [type(one) for one in apart] == [type(one) for one in own]
    for answer, sha256, name in zip(apart, expected, names, strict=True):
        assert isinstance(answer, int) == (sha256 is not None and sha256 != "0" * 64), name
    assert [e.content_id for e in there.entries("s")] == [e.content_id for e in here.entries("s")]
    (tmp_path / "one").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError, match="mount its disk"):
        there.bulk.infos("s", ["a"])


def test_they_are_started_when_there_is_enough_to_do(tmp_path: Path) -> None:
    with BulkProcesses(1, worth=100) as processes:
        store = LocalStore(tmp_path / "store", processes=processes)
        store.create_space("s")
        names = [f"{n}" for n in range(33)]
        for _ in range(3):
            store.bulk.infos("s", names)
        assert not processes.pids
        assert "bulk-processes" not in {thread.name for thread in threading.enumerate()}
        store.bulk.infos("s", names)
        until(lambda: len(processes.pids) == 1)
    assert processes.pids == []


def test_they_leave_nothing_behind_when_they_are_closed(tmp_path: Path) -> None:
    with started(2) as processes:
        store, pids = LocalStore(tmp_path / "store", processes=processes), processes.pids
        store.create_space("s")
        store.bulk.put("s", [new(f"{n}") for n in range(50)])
    assert not any(map(lives, pids))
    assert list((tmp_path / "store" / ".millstream" / "drafts").iterdir()) == []
    assert isinstance(store.bulk.infos("s", ["1"])[0], ItemInfo), "it goes on without them"


def test_p6_one_that_is_killed_at_its_work_stores_items_whole_or_not_at_all_and_the_audit_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_pool, "CHILD", "killed_child")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("DIES_AT", str(tmp_path / "dies at"))
    folder, found = tmp_path / "store", set[int]()
    outbox = AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock())
    for step in range(0, 400, sized(ci=55, long=9)):  # a step before and after each of 100 descriptions and links
        space, items = f"s{step}", [new(f"{n}", b"%d" % n * 99) for n in range(100)]
        (tmp_path / "dies at").write_text(str(step))
        with started(1) as processes:
            store = AuditedStore(LocalStore(folder, processes=processes), outbox, "1")
            store.create_space(space)
            with pytest.raises(
                StoreUnavailableError, match="processing 100 items of a local store was killed by SIGKILL"
            ):
                put(store, space, items)
            stored = {entry.content_id for entry in store.entries(space)}
            found.add(len(stored))
            assert told_of(outbox, space) == sorted(stored) and outbox.open_intents(others=True) == []
            put(store, space, [item for item in items if item.content_id not in stored])
        assert told_of(outbox, space) == sorted(item.content_id for item in items)
        for item in items:
            assert store.info(space, item.content_id).checksum() == item.sha256
            assert (folder / space / item.content_id).read_bytes() == item.data
    assert 0 in found and len(found) > 2, "some were killed in the middle"


def put(store: AuditedStore, space: str, items: list[NewItem]) -> None:
    assert store.bulk is not None
    assert all(isinstance(one, ItemInfo) for one in store.bulk.put(space, items))


def told_of(outbox: AuditOutbox, space: str) -> list[str]:
    """The items of the space that have an event, each as often as it has one."""
    return sorted(e.content_id for e in outbox.events(limit=10**6) if e.space == space and e.content_id)


def kill_when_asked(processes: BulkProcesses, ask: Callable[[], Answer]) -> Answer:
    """What *ask* gives, which asks the only one of *processes*; that is killed before it answers."""
    until(lambda: len(processes.pids) == 1)
    (pid,) = processes.pids
    os.kill(pid, signal.SIGSTOP)

    def kill() -> None:
        until(lambda: not processes.pids)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        return ask()
    finally:
        killer.join()


@pytest.mark.smoke
@pytest.mark.crash
def test_one_that_was_killed_at_its_work_is_said_so_and_replaced(
    store: LocalStore, processes: BulkProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        StoreUnavailableError, match="processing 2 items of a local store was killed by SIGKILL: try again"
    ):
        kill_when_asked(processes, lambda: store.bulk.put("s", [new("a"), new("b")]))
    assert caplog.messages == ["a child process for small files was killed by SIGKILL; another process does its work"]
    until(lambda: len(processes.pids) == 1)
    assert isinstance(store.bulk.put("s", [new("a")])[0], ItemInfo)


def test_what_one_was_to_read_when_it_was_killed_is_read_without_it(
    store: LocalStore, processes: BulkProcesses
) -> None:
    store.bulk.put("s", [new("a")])
    for act in ("infos", "read", "hashes"):
        (answer,) = kill_when_asked(processes, lambda act=act: getattr(store.bulk, act)("s", ["a"]))
        assert not isinstance(answer, StoreError)


def test_one_that_was_killed_when_it_had_nothing_to_do_is_nobodys_error(
    store: LocalStore, processes: BulkProcesses
) -> None:
    (pid,) = processes.pids
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid))
    assert isinstance(store.bulk.put("s", [new("a")])[0], ItemInfo)
    until(lambda: len(processes.pids) == 1 and processes.pids != [pid])


def test_those_who_ask_while_all_are_busy_wait_for_one(store: LocalStore, processes: BulkProcesses) -> None:
    answers: list[object] = []
    (pid,) = processes.pids
    os.kill(pid, signal.SIGSTOP)
    threads = [
        threading.Thread(target=lambda n=n: answers.extend(store.bulk.put("s", [new(f"{n}")]))) for n in range(5)
    ]
    for thread in threads:
        thread.start()
    until(lambda: not processes.pids)
    os.kill(pid, signal.SIGCONT)
    for thread in threads:
        thread.join(30)
    assert [type(answer) for answer in answers] == [ItemInfo] * 5 and processes.pids == [pid]


@pytest.mark.crash
def test_where_they_are_killed_again_and_again_it_goes_without_them(
    store: LocalStore, processes: BulkProcesses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(child_pool.MAX_LOSSES):
        kill_when_asked(processes, lambda: store.bulk.infos("s", ["a"]))
    assert isinstance(store.bulk.put("s", [new("a")])[0], ItemInfo) and processes.pids == []
    assert "no further child process is started for 60 min" in caplog.records[-1].getMessage()
    monkeypatch.setattr(child_pool, "REMEMBERED", 0.0)
    with processes._changed:
        processes._changed.notify_all()  # as after an hour
    until(lambda: len(processes.pids) == 1)


def test_where_none_can_be_started_it_goes_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for program in ("/bin/false", str(tmp_path / "none")):
        monkeypatch.setattr(sys, "executable", program)
        caplog.clear()
        with BulkProcesses(2, worth=1) as processes:
            store = LocalStore(tmp_path / "store", processes=processes)
            store.create_space("s")
            store.bulk.infos("s", ["a"])
            until(lambda: bool(caplog.records))
            assert isinstance(store.bulk.infos("s", ["a"])[0], StoreError)
        (record,) = caplog.records
        assert "cannot start further child processes" in record.getMessage()
        assert program != "/bin/false" or "exit code 1 while it started: its standard error" in record.getMessage()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_for_all_processes_of_a_service_are_for_the_parent(
    store: LocalStore, processes: BulkProcesses, number: int
) -> None:
    (pid,) = processes.pids
    os.kill(pid, number)
    assert isinstance(store.bulk.put("s", [new("a")])[0], ItemInfo)
    assert processes.pids == [pid]


@pytest.mark.parametrize("how", ["killed", "stopped and killed", "ended"])
def test_they_die_with_their_parent(tmp_path: Path, how: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SELF_AND_PIPES, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None and parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert all(map(lives, pids)) and len(pids) == 2
    if how == "stopped and killed":
        os.kill(pids[0], signal.SIGSTOP)
    if how != "ended":
        parent.kill()
    parent.communicate()
    until(lambda: not any(map(lives, pids)))


def test_a_forked_process_leaves_them_to_its_parent(store: LocalStore, processes: BulkProcesses) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if isinstance(store.bulk.put("s", [new("a")])[0], ItemInfo) and processes.ask(b"", 1) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert isinstance(store.bulk.infos("s", ["a"])[0], ItemInfo)


def test_an_error_that_nobody_thought_of_comes_back_with_its_name(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="ValidationError: Expected `object`"):
        store.bulk.put("s", [b"no item"])  # type: ignore[list-item]


def test_large_frames_go_both_ways(store: LocalStore) -> None:
    items = [new(f"{n}", bytes([n]) * SMALL) for n in range(16)]
    assert all(isinstance(one, ItemInfo) for one in store.bulk.put("s", items))
    assert store.bulk.read("s", [item.content_id for item in items]) == [item.data for item in items]


def test_stores_opened_by_url_have_them_mounts_too(tmp_path: Path, processes: BulkProcesses) -> None:
    store = open_provider(f"file://{tmp_path}/a?mount=m:file://{tmp_path}/b", create=True, processes=processes)
    assert isinstance(store, MountedStore) and store.bulk is not None
    bulk = store.bulk
    for space in ("s", "m"):
        store.create_space(space)
        kill_when_asked(processes, lambda space=space: bulk.infos(space, ["a"]))


def test_how_many_they_are_is_a_setting() -> None:
    def mill(processes: object) -> Any:
        return load_settings({"mill": {"processes": processes}}, environment={})[0].mill

    assert (mill(0).processes, mill("3").processes) == (0, 3)
    assert load_settings({}, environment={})[0].mill.processes is None
    with pytest.raises(SettingsError, match=r"mill\.processes"):
        mill(-1)
    assert 0 <= child_pool.default_process_count() <= child_pool.MAX_PROCESSES


def test_files_of_a_source_that_are_as_they_were_listed_are_hashed_together(
    tmp_path: Path, processes: BulkProcesses
) -> None:
    bodies = {"a/50%": b"1", "b": b"2" * 100_000, "changed": b"3", "empty": b"", "grown": b"5", "large": b"6"}
    for name, body in bodies.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)
    (tmp_path / "link").symlink_to("b")
    plain, helped = FolderStore(tmp_path, space="s"), FolderStore(tmp_path, space="s", processes=processes)
    listed = [(one.content_id, one.size, one.version or "") for one in plain.entries("s")]
    os.utime(tmp_path / "changed", ns=(0, 0))
    (tmp_path / "grown").write_bytes(b"55")
    listed = [(name, SMALL + 1 if name == "large" else size, version) for name, size, version in listed]
    listed.append(("gone", 1, "0"))
    found = list(plain.hash_versions(listed))
    hashed = {name: sha256 for (name, _, _), sha256 in zip(listed, found, strict=True) if sha256 is not None}
    assert hashed == {name: hashlib.sha256(bodies[name]).hexdigest() for name in ("a/50%", "b", "empty")}
    assert helped.hash_versions(listed) == found
    os.kill(processes.pids[0], signal.SIGKILL)
    assert helped.hash_versions(listed) == found, "without the process that was killed"
