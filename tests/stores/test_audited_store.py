"""The audit of a store: no change without its event, no event without its change, whatever dies or stays silent."""

from __future__ import annotations

import contextlib
import io
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.stores import (
    AlreadyExistsError,
    ChecksumMismatchError,
    ItemNotFoundError,
    LocalStore,
    MemoryStore,
    SpaceAccess,
    SpaceNotEmptyError,
    Store,
    StoreUnavailableError,
)
from millstream.stores.audit import AuditAction, AuditBusyError, AuditedStore, AuditEvent, AuditOutbox
from millstream.testing.faulty_store import LostReplyStore, UnavailableStore
from millstream.testing.store_content import sha256
from millstream.testing.stores import StoreConformance
from suite.engines import open_engine
from support.programs import load_program

CRASHER = Path(__file__).with_name("audit_crasher.py")


crasher = load_program(CRASHER)


def engine(folder: Path) -> sa.Engine:
    return open_engine(f"sqlite:///{folder / 'audit.db'}")


@pytest.fixture
def outbox(tmp_path: Path) -> AuditOutbox:
    return AuditOutbox(engine(tmp_path), VirtualClock())


def audited(outbox: AuditOutbox, store: Store | None = None) -> AuditedStore:
    made = AuditedStore(store or MemoryStore(clock=VirtualClock()), outbox, "1", account="acme", user="ann")
    if store is None:
        made.create_space("s")
    return made


def events(outbox: AuditOutbox) -> list[AuditEvent]:
    return list(outbox.events())


class TestAuditedStore(StoreConformance):
    reopens = False

    def open_store(self, folder: Path) -> Store:
        return AuditedStore(MemoryStore(), AuditOutbox(engine(folder)), "1")


def test_a_damaged_access_list_is_replaced_with_its_event(outbox: AuditOutbox, tmp_path: Path) -> None:
    store = audited(outbox, LocalStore(tmp_path / "store"))
    store.create_space("s")
    store.set_space_acls("s", {"ann": SpaceAccess.READ})
    record = tmp_path / "store" / ".millstream" / "spaces" / "s.json"
    record.write_bytes(b"damaged")
    cut = outbox.begin(store.event(AuditAction.SET_SPACE_ACLS, "s", acls={"bob": "read"}), had_space=True)
    store.set_space_acls("s", {"ann": SpaceAccess.READ})
    assert store.space_acls("s") == {"ann": SpaceAccess.READ}
    seen = events(outbox)
    assert [event.acls for event in seen if event.action == AuditAction.SET_SPACE_ACLS] == [{"ann": "read"}] * 2
    assert cut.event.number not in {event.number for event in seen}


def test_every_change_has_its_event_with_its_fields(outbox: AuditOutbox) -> None:
    store = audited(outbox)
    store.put("s", "a", io.BytesIO(b"grain"), mimetype="text/plain", properties={"p": "1"})
    store.set_properties("s", "a", {"p": "2"})
    store.copy("s", "a", "s", "b")
    store.delete("s", "a")
    store.delete("s", "b")
    store.set_space_acls("s", {"ann": SpaceAccess.READ})
    store.set_space_acls("s", {"ann": SpaceAccess.READ})
    store.delete_space("s")
    seen = events(outbox)
    assert {(e.user, e.account, e.store, e.store_type, e.space) for e in seen} == {("ann", "acme", "1", "memory", "s")}
    assert [e.at for e in seen] == sorted({e.at for e in seen})
    described: dict[str, Any] = {"sha256": sha256(b"grain"), "size": 5, "mimetype": "text/plain"}
    expected: list[tuple[AuditAction, str, dict[str, Any]]] = [
        (AuditAction.CREATE_SPACE, "", {}),
        (AuditAction.ADD_CONTENT, "a", {**described, "properties": {"p": "1"}}),
        (AuditAction.SET_CONTENT_PROPERTIES, "a", {"properties": {"p": "2"}}),
        (
            AuditAction.COPY_CONTENT,
            "b",
            {**described, "properties": {"p": "2"}, "source_space": "s", "source_content_id": "a"},
        ),
        (AuditAction.DELETE_CONTENT, "a", described),
        (AuditAction.DELETE_CONTENT, "b", described),
        (AuditAction.SET_SPACE_ACLS, "", {"acls": {"ann": "read"}}),
        (AuditAction.DELETE_SPACE, "", {}),
    ]
    fields = ("acls", "sha256", "size", "mimetype", "properties", "source_space", "source_content_id")
    for event, (action, content_id, known) in zip(seen, expected, strict=True):
        assert (event.action, event.content_id) == (action, content_id)
        assert {name: getattr(event, name) for name in fields} == {**dict.fromkeys(fields), **known}


def test_reading_and_changing_nothing_are_no_events(outbox: AuditOutbox) -> None:
    store = audited(outbox)
    store.put("s", "a", io.BytesIO(b"grain"))
    before = events(outbox)
    store.create_space("s")
    store.spaces(), store.has_space("s"), store.entries("s"), store.info("s", "a"), store.open("s", "a").__exit__
    for refused, error in (
        (lambda: store.put("s", "a", io.BytesIO(b"other"), create_only=True), AlreadyExistsError),
        (lambda: store.put("s", "b", io.BytesIO(b"other"), sha256="0" * 64), ChecksumMismatchError),
        (lambda: store.delete("s", "b"), ItemNotFoundError),
        (lambda: store.set_properties("s", "b", {}), ItemNotFoundError),
        (lambda: store.copy("s", "b", "s", "c"), ItemNotFoundError),
        (lambda: store.delete_space("s"), SpaceNotEmptyError),
    ):
        with pytest.raises(error):
            refused()
    assert events(outbox) == before
    assert outbox.open_intents(others=True) == []


def state(store: Store) -> dict[str, Any]:
    return {
        space: {entry.content_id: described(store, space, entry.content_id) for entry in store.entries(space)}
        | ({"": dict(store.space_acls(space))} if store.space_acls(space) else {})
        for space in store.spaces()
    }


def described(store: Store, space: str, content_id: str) -> tuple[str | None, dict[str, str]]:
    info = store.info(space, content_id)
    return info.checksum(), dict(info.properties)


def replayed(history: list[AuditEvent]) -> dict[str, Any]:
    """The state that *history* tells of."""
    told: dict[str, Any] = {}
    for event in history:
        match event.action:
            case AuditAction.CREATE_SPACE:
                assert event.space not in told
                told[event.space] = {}
            case AuditAction.DELETE_SPACE:
                left = told.pop(event.space)
                assert not left.keys() - {""}
            case AuditAction.SET_SPACE_ACLS:
                told[event.space][""] = dict(event.acls or {})
            case AuditAction.DELETE_CONTENT:
                sum_, _ = told[event.space].pop(event.content_id)
                assert sum_ == event.sha256
            case AuditAction.SET_CONTENT_PROPERTIES:
                sum_, _ = told[event.space][event.content_id]
                told[event.space][event.content_id] = (sum_, dict(event.properties or {}))
            case _:
                told[event.space][event.content_id] = (event.sha256, dict(event.properties or {}))
    return told


@pytest.mark.parametrize("fault", [LostReplyStore, UnavailableStore])
@pytest.mark.parametrize("seed", range(6))
def test_a_silent_store_loses_and_invents_no_event(outbox: AuditOutbox, fault: type, seed: int) -> None:
    draw = random.Random(seed)
    inner = MemoryStore(clock=VirtualClock())
    store = AuditedStore(fault(inner, None, lambda _: draw.random() < 0.3), outbox, "1")
    for step in crasher.SCRIPT:
        before = state(inner)
        while state(inner) == before:
            with contextlib.suppress(StoreUnavailableError):
                crasher.change(store, step)
    AuditedStore(inner, outbox, "1").recover()
    assert replayed(events(outbox)) == state(inner)
    assert len(events(outbox)) == len(crasher.SCRIPT)
    assert outbox.open_intents(others=True) == []


@pytest.mark.long
def test_p6_killed_at_any_step_no_event_is_lost_and_none_invented(tmp_path: Path, size: str) -> None:
    steps = [str(number) for number in (range(110) if size == "long" else range(0, 110, 5))]
    done = subprocess.run(
        [sys.executable, str(CRASHER), str(tmp_path), *steps], capture_output=True, text=True, timeout=240, check=True
    )
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    killed = [step for step, signal in outcomes.items() if signal == "9"]
    assert len(killed) > 15 and outcomes[steps[-1]] == "0"
    for step in steps:
        database, store = crasher.open_audited(tmp_path / step)
        if step.endswith("5"):
            store.recover()
        else:  # whoever changes the same thing next finds the killed process gone, and settles what it left
            for intent in store.outbox.open_intents(others=True):
                with store._changing(intent.event.action, intent.event.space, intent.event.content_id or None):
                    pass
        history = events(store.outbox)
        assert replayed(history) == state(store), step
        expected = [crasher.SCRIPT[number] for number in range(len(history))]
        assert [action(event) for event in history] == [one[0].replace("pipe", "put") for one in expected], step
        assert store.outbox.open_intents(others=True) == []
        database.dispose()


def action(event: AuditEvent) -> str:
    names = {"ADD_CONTENT": "put", "COPY_CONTENT": "copy", "DELETE_CONTENT": "delete"}
    return names.get(event.action.value, event.action.value.lower().replace("content_", ""))


def test_what_another_process_is_changing_is_busy_until_it_is_settled(tmp_path: Path) -> None:
    inner = MemoryStore(clock=VirtualClock())
    database = engine(tmp_path)
    dead = AuditedStore(inner, AuditOutbox(database, VirtualClock()), "1")
    dead.create_space("s")
    dead.outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "n/a", 0, "local", "1", "memory", "s", "a", sha256="0" * 64))
    alive = AuditedStore(inner, AuditOutbox(database, VirtualClock()), "1")
    with pytest.raises(AuditBusyError, match="--recover"):
        alive.put("s", "a", io.BytesIO(b"grain"))
    alive.put("s", "b", io.BytesIO(b"grain"))
    assert alive.recover() == 1
    alive.put("s", "a", io.BytesIO(b"grain"))
    assert [event.content_id for event in events(alive.outbox)] == ["", "b", "a"]


def test_p8_what_was_cut_short_is_neither_invented_nor_lost_while_the_disk_is_not_mounted(tmp_path: Path) -> None:
    folder, database = tmp_path / "disk", engine(tmp_path)
    inner = LocalStore(folder)
    dead = AuditedStore(inner, AuditOutbox(database, VirtualClock()), "1")
    dead.create_space("s")
    before = [dead.put("s", name, io.BytesIO(b"grain")) for name in ("kept", "gone")]
    said = ("n/a", 0, "local", "1", "file", "s")
    for info in before:  # it died before the first delete, and after the second
        dead.outbox.begin(AuditEvent(AuditAction.DELETE_CONTENT, *said, info.content_id), item=info)
    inner.delete("s", "gone")
    dead.outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, *said, "new", sha256=sha256(b"grain")))
    inner.put("s", "new", io.BytesIO(b"grain"))
    away = folder.rename(tmp_path / "away")
    folder.mkdir()
    alive = AuditedStore(LocalStore(folder), AuditOutbox(database, VirtualClock()), "1")
    with pytest.raises(
        StoreUnavailableError, match=r"lists no spaces: is its disk mounted\? If a new, .*`millstream store create 1 s`"
    ):
        alive.recover()
    folder.rmdir()
    away.rename(folder)
    assert AuditedStore(LocalStore(folder), alive.outbox, "1").recover() == 3
    assert [(event.action, event.content_id) for event in events(alive.outbox)][3:] == [
        (AuditAction.DELETE_CONTENT, "gone"),
        (AuditAction.ADD_CONTENT, "new"),
    ]


def test_events_that_were_missed_are_added_together_but_for_items_that_others_are_changing(tmp_path: Path) -> None:
    database = engine(tmp_path)
    mine, other = AuditOutbox(database, VirtualClock()), AuditOutbox(database, VirtualClock())
    missed = [AuditEvent(AuditAction.ADD_CONTENT, "mill", 0, "local", "1", "memory", "s", name) for name in "abc"]
    other.begin(missed[1])
    assert mine.add(missed) == 2
    found = events(mine)
    assert [(event.content_id, event.user) for event in found] == [("a", "mill"), ("c", "mill")]
    assert found[0].number < found[1].number and found[0].at < found[1].at
    assert mine.add([]) == 0
    assert [intent.event.content_id for intent in mine.open_intents(others=True)] == ["b"]


def test_events_are_delivered_in_order_and_again_after_a_crash(outbox: AuditOutbox) -> None:
    store = audited(outbox)
    for number in range(5):
        store.put("s", str(number), io.BytesIO(b"%d" % number))
    got: list[int] = []

    def broken(numbers: Any) -> None:
        got.extend(numbers)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        outbox.deliver(broken, limit=4)
    assert outbox.undelivered() == 6
    assert outbox.deliver(got.extend, limit=4) == 4
    assert outbox.deliver(got.extend) == 2
    assert outbox.deliver(got.extend) == 0
    assert got == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6]
    assert list(outbox.get([2, 5])) == [2, 5]
    assert outbox.pending("1", "s") == {"", "0", "1", "2", "3", "4"}
    outbox.remove([1, 2, 3, 4, 5])
    assert outbox.get([2]) == {}
    assert outbox.pending("1", "s") == {"4"}


def test_time_never_goes_back(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = audited(AuditOutbox(engine(tmp_path), clock))
    clock.sleep(100)
    store.put("s", "a", io.BytesIO(b""))
    store.outbox._clock = VirtualClock()  # a clock that was set back
    store.delete("s", "a")
    times = [event.at for event in store.outbox.events()]
    assert times == sorted(set(times))
