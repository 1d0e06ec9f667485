"""What ended processes left open at an audited store is settled once, and nobody settles for a process that runs."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core import processes
from millstream.core.clock import VirtualClock
from millstream.core.processes import boot_id, find_process, machine_id, pid_namespace
from millstream.stores import LocalStore, MemoryStore, Store
from millstream.stores.audit import AuditAction, AuditedStore, AuditOutbox, HolderState, settle_ended
from millstream.stores.audit.holders import Holders, find_elsewhere
from millstream.stores.bulk import NewItem
from millstream.stores.protocol import StoreError
from millstream.testing.faulty_store import UnavailableStore
from millstream.testing.store_content import sha256
from suite.engines import open_engine


@pytest.fixture(scope="module")
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def holder(pid: int, **changed: str) -> str:
    """The name that the process *pid* of this container would have, with parts of it *changed*."""
    found = find_process(pid)
    parts = {
        "host": socket.gethostname(), "pid": str(pid), "started": str(found.started) if found else "7",
        "token": "00000abc", "boot": boot_id(), "namespace": pid_namespace(), "machine": machine_id(),
    }  # fmt: skip
    return "/".join((parts | changed).values())


@pytest.mark.parametrize(
    ("alive", "changed", "state"),
    [
        (True, {}, HolderState.RUNNING),
        (False, {}, HolderState.ENDED),
        (True, {"started": "1"}, HolderState.ENDED),  # its number was given to another process
        (True, {"boot": "an earlier one"}, HolderState.ENDED),  # the machine was started again
        (False, {"boot": "another", "host": "elsewhere"}, HolderState.UNKNOWN),
        (False, {"boot": "another", "machine": "of the same name"}, HolderState.UNKNOWN),
        (False, {"namespace": "pid:[1]"}, HolderState.ENDED),  # a container, and nobody holds its lock
    ],
)
def test_a_holder_has_ended_only_where_that_is_certain(
    tmp_path: Path, dead_pid: int, alive: bool, changed: dict[str, str], state: HolderState
) -> None:
    lock = tmp_path / "node.db-holders"
    lock.touch()
    assert Holders(lock).state(holder(os.getpid() if alive else dead_pid, **changed)) == state


def test_a_machine_without_an_id_may_be_another_one_of_the_same_name(
    tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.stores.audit.holders.machine_id", str)
    name = holder(dead_pid, boot="another", machine="")
    assert Holders().state(name) == HolderState.UNKNOWN, "of those that share a database server"
    lock = tmp_path / "node.db-holders"
    lock.touch()
    assert Holders(lock).state(name) == HolderState.ENDED


def test_a_process_that_proc_hides_has_ended_only_if_its_number_is_nobodys(
    tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [holder(os.getpid()), holder(dead_pid)]
    monkeypatch.setattr(processes, "_PROC", tmp_path)  # as with the mount option hidepid=2
    assert [Holders().state(name) for name in names] == [HolderState.RUNNING, HolderState.ENDED]


def test_a_process_of_another_container_runs_for_as_long_as_it_holds_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "node.db-holders"
    theirs, mine = Holders(lock), Holders(lock)
    name = theirs.new().replace(pid_namespace(), "pid:[1]")
    assert mine.state(name) == HolderState.RUNNING
    assert mine.state(mine.new().replace(pid_namespace(), "pid:[2]")) == HolderState.RUNNING
    del theirs
    assert mine.state(name) == HolderState.ENDED
    lock.unlink()
    assert [mine.state(name), Holders().state(name)] == [HolderState.UNKNOWN] * 2


def test_names_that_earlier_releases_wrote_are_understood(dead_pid: int) -> None:
    host, pid, started, token, *_ = holder(os.getpid()).split("/")
    holders = Holders()
    assert holders.state(f"{host}/{pid}/{started}/{token}") == HolderState.RUNNING
    assert holders.state(f"{host}/{dead_pid}/{started}/{token}") == HolderState.ENDED
    assert holders.state(f"elsewhere/{dead_pid}/{started}/{token}") == HolderState.UNKNOWN
    assert holders.state("what is this") == HolderState.UNKNOWN


@pytest.fixture
def outbox(tmp_path: Path) -> AuditOutbox:
    return AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock())


def left_open(tmp_path: Path, store: Store, by: str) -> AuditedStore:
    """*store* as the process *by* has used it: it died in the midst of four changes, of which two had happened."""
    theirs = AuditedStore(store, AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), holder=by), "1")
    theirs.create_space("s")
    old = theirs.put("s", "old", io.BytesIO(b"old"))
    said = {"mimetype": "text/plain", "properties": {}}
    for name, body in (("there", b"grain"), ("absent", b"chaff")):
        theirs.outbox.begin(theirs.event(AuditAction.ADD_CONTENT, "s", name, sha256=sha256(body), **said))
    store.put("s", "there", io.BytesIO(b"grain"), mimetype="text/plain")
    theirs.outbox.begin(theirs.event(AuditAction.ADD_CONTENT, "s", "old", sha256=sha256(b"newer"), **said), item=old)
    store.put("s", "old", io.BytesIO(b"newer"), mimetype="text/plain")
    theirs.outbox.begin(theirs.event(AuditAction.ADD_CONTENT, "s", "stream", **said))
    return theirs


@pytest.fixture(params=["memory", "folder"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield LocalStore(tmp_path / "store") if request.param == "folder" else MemoryStore(clock=VirtualClock())


def test_what_an_ended_process_left_open_is_settled_once_with_all_that_its_event_would_have(
    outbox: AuditOutbox, tmp_path: Path, inner: Store, dead_pid: int
) -> None:
    left_open(tmp_path, inner, holder(dead_pid))
    mine = AuditedStore(inner, outbox, "1")
    settle_ended([inner, mine])
    settle_ended([mine])
    assert outbox.open_intents(others=True) == []
    settled = sorted(outbox.events()[2:], key=lambda event: event.content_id)
    assert [(event.content_id, event.sha256, event.size, event.mimetype) for event in settled] == [
        ("old", sha256(b"newer"), 5, "text/plain"),
        ("there", sha256(b"grain"), 5, "text/plain"),
    ]


@pytest.mark.parametrize("changed", [{}, {"boot": "other", "host": "elsewhere"}])
def test_what_a_running_process_or_one_elsewhere_has_begun_stays_open(
    outbox: AuditOutbox, tmp_path: Path, changed: dict[str, str]
) -> None:
    inner = MemoryStore(clock=VirtualClock())
    left_open(tmp_path, inner, holder(os.getpid(), **changed))
    settle_ended([AuditedStore(inner, outbox, "1")])
    assert len(outbox.open_intents(others=True)) == 4


def test_a_store_that_does_not_answer_keeps_its_changes_open_and_does_not_keep_a_node_from_starting(
    outbox: AuditOutbox, tmp_path: Path, dead_pid: int, caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemoryStore(clock=VirtualClock())
    left_open(tmp_path, inner, holder(dead_pid))
    settle_ended([AuditedStore(UnavailableStore(inner, None, lambda _: True), outbox, "1")])
    assert len(outbox.open_intents(others=True)) == 4
    assert "changes of ended processes stay open until the next start" in caplog.text
    settle_ended([AuditedStore(inner, outbox, "1")])
    assert len(outbox.events()) == 4


class _Members:
    """What a database says of processes elsewhere: each has ended."""

    def state(self, _holder: str) -> HolderState:
        return HolderState.ENDED


class _Stopped(MemoryStore):
    """The process of this store is stopped before it puts an item, or after; others take it for one that has ended."""

    def __init__(self, *, before: bool) -> None:
        super().__init__(clock=VirtualClock())
        self.before, self.meanwhile = before, lambda: None

    def put(self, *arguments: Any, **said: Any) -> Any:
        if self.before:
            self.meanwhile()
        info = super().put(*arguments, **said)
        if not self.before:
            self.meanwhile()
        return info


@pytest.mark.parametrize("before", [True, False])
def test_what_a_process_elsewhere_began_and_did_after_it_was_taken_for_ended_is_recorded(
    tmp_path: Path, before: bool
) -> None:
    engine, members = open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), _Members()
    find_elsewhere(engine, members.state)
    inner = _Stopped(before=before)
    theirs = AuditedStore(
        inner, AuditOutbox(engine, VirtualClock(), holder=holder(7, boot="other", host="elsewhere")), "1"
    )
    theirs.create_space("s")
    mine = AuditedStore(inner, AuditOutbox(engine, VirtualClock()), "1")
    inner.meanwhile = lambda: settle_ended([mine])
    theirs.put("s", "a", io.BytesIO(b"grain"))
    assert mine.outbox.open_intents(others=True) == []
    assert [(event.content_id, event.sha256) for event in mine.outbox.events()[1:]] == [("a", sha256(b"grain"))]
    inner.meanwhile = lambda: None
    theirs.put("s", "b", io.BytesIO(b"grain"))
    numbers = [event.number for event in mine.outbox.events()]
    assert len(numbers) == len(set(numbers)) == 3


class _Overtaken(LocalStore):
    """Between the look at an item and its change another process puts the same item."""

    def __init__(self, folder: Path, other: AuditedStore) -> None:
        super().__init__(folder)
        self.other, own = other, self.bulk
        looked = own.absent

        def absent(space: str, content_ids: list[str]) -> object:
            found = looked(space, content_ids)
            other.put(space, "a", io.BytesIO(b"body"))
            return found

        own.absent = absent  # type: ignore[method-assign, assignment]


def test_an_item_that_another_process_puts_after_it_was_looked_at_has_one_event(
    outbox: AuditOutbox, tmp_path: Path
) -> None:
    other = AuditedStore(
        LocalStore(tmp_path / "s"), AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock()), "1"
    )
    other.create_space("s")
    mine = AuditedStore(_Overtaken(tmp_path / "s", other), outbox, "1")
    assert mine.bulk is not None
    (answer,) = mine.bulk.put("s", [NewItem("a", b"body", sha256(b"body"))])
    assert isinstance(answer, StoreError)
    assert [event.content_id for event in outbox.events()] == ["", "a"]
    assert outbox.open_intents(others=True) == []
