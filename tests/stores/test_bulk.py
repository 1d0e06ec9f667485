"""Many items at once: the same answers, the same files and the same audit as one by one, whatever dies in between."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import random
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.core.clock import VirtualClock
from millstream.stores import (
    AlreadyExistsError,
    ChecksumMismatchError,
    ItemInfo,
    ItemNotFoundError,
    LocalStore,
    MemoryStore,
    MountedStore,
    SpaceNotFoundError,
    StoreError,
    StoreInputError,
    StoreUnavailableError,
)
from millstream.stores.audit import AuditAction, AuditBusyError, AuditedStore, AuditOutbox
from millstream.stores.audit.target_locks import TargetLocks
from millstream.stores.bulk import SMALL, NewItem, Reading, bulk_of, find_absent, reads_at_once
from millstream.stores.hashing import Digests
from millstream.stores.local import atomic_files
from millstream.testing.store_content import ODD_IDS
from suite.engines import open_engine
from support.programs import load_program

CRASHER = Path(__file__).with_name("bulk_crasher.py")


crasher = load_program(CRASHER)


def new(name: str, body: bytes = b"body", /, **properties: str) -> NewItem:
    return NewItem(name, body, hashlib.sha256(body).hexdigest(), "text/plain", properties)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "store")
    made.create_space("s")
    return made


def kinds(answers: Sequence[object]) -> list[type]:
    return [type(answer) for answer in answers]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_put_together_is_as_if_it_was_put_one_by_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "can_sync_filesystem", lambda _folder: seed % 2 == 0)
    monkeypatch.setattr(atomic_files, "UNNAMED", seed < 2)
    one, many = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "many")
    names = random.Random(seed).sample(ODD_IDS, 12)
    for store in (one, many):
        store.create_space("s")
    put = list(many.bulk.put("s", [new(name, name.encode(), name="x") for name in names]))
    for number, name in enumerate(names):
        if not isinstance(put[number], ItemInfo):  # another one of them was in its way
            (put[number],) = many.bulk.put("s", [new(name, name.encode(), name="x")])
    for name, answer in zip(names, put, strict=True):
        single = one.put("s", name, io.BytesIO(name.encode()), mimetype="text/plain", properties={"name": "x"})
        assert isinstance(answer, ItemInfo)
        assert (answer.checksums, answer.size, answer.properties) == (single.checksums, single.size, single.properties)
    assert [entry.content_id for entry in many.entries("s")] == [entry.content_id for entry in one.entries("s")]
    assert many.bulk.infos("s", names) == [many.info("s", name) for name in names] == put
    assert many.bulk.read("s", names) == [name.encode() for name in names]
    hashes = [one for one in many.bulk.hashes("s", names) if isinstance(one, Digests)]
    assert [one.sha256 for one in hashes] == [hashlib.sha256(name.encode()).hexdigest() for name in names]
    assert [one.size for one in hashes] == [len(name.encode()) for name in names]


def test_an_item_with_which_something_is_wrong_keeps_no_other_from_being_done(store: LocalStore) -> None:
    store.put("s", "there", io.BytesIO(b"before"))
    wrong = NewItem("wrong", b"body", "0" * 64)
    answers = store.bulk.put("s", [new("a"), new("there", b"after"), wrong, new("bad\0id"), new("b")])
    assert kinds(answers) == [ItemInfo, AlreadyExistsError, ChecksumMismatchError, StoreInputError, ItemInfo]
    assert [entry.content_id for entry in store.entries("s")] == ["a", "b", "there"]
    assert store.path_of("s", "there").read_bytes() == b"before"
    found = store.bulk.infos("s", ["a", "none", "there"])
    assert kinds(found) == [ItemInfo, ItemNotFoundError, ItemInfo]
    atomic_files = store.path_of("s", "a").parents[1] / ".millstream" / "drafts"
    assert not [path for path in atomic_files.rglob("*") if path.is_file() and path.suffix != ".lock"], (
        "no draft is left"
    )


def test_items_in_the_way_of_one_another_are_spelled_flat_or_done_alone(store: LocalStore) -> None:
    names = ["a", "a/b", "c/d", "c"]
    assert kinds(store.bulk.put("s", [new(name) for name in names])) == [StoreError, ItemInfo, ItemInfo, ItemInfo]
    assert kinds(store.bulk.infos("s", names)) == [ItemNotFoundError, ItemInfo, ItemInfo, ItemInfo]
    store.put("s", "a", io.BytesIO(b"body"))
    assert [entry.content_id for entry in store.entries("s")] == sorted(names)
    assert store.bulk.infos("s", names) == [store.info("s", name) for name in names]


def test_large_items_are_not_read_together_with_others(store: LocalStore) -> None:
    store.put("s", "large", io.BytesIO(b"x" * (SMALL + 1)))
    store.put("s", "small", io.BytesIO(b"x" * SMALL))
    large, small = store.bulk.read("s", ["large", "small"])
    assert isinstance(large, StoreError) and small == b"x" * SMALL
    assert kinds(store.bulk.hashes("s", ["large", "small", "none"])) == [StoreError, Digests, ItemNotFoundError]


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("s", "a", io.BytesIO(b"12345"))
    read = os.read

    def grow(handle: int, count: int) -> bytes:
        with store.path_of("s", "a").open("ab") as file:
            file.write(b"6789" if file.tell() < 9 else b"")
        return read(handle, count)

    monkeypatch.setattr(os, "read", grow)
    assert store.bulk.read("s", ["a"]) == [b"123456789"]


def test_a_file_that_grows_without_an_end_is_not_read_into_memory(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("s", "a", io.BytesIO(b"12345"))
    read, total = os.read, 0

    def grow(handle: int, count: int) -> bytes:
        nonlocal total
        total += count
        assert total < 3 * SMALL
        with store.path_of("s", "a").open("ab") as file:
            file.write(bytes(SMALL))
        return read(handle, count)

    monkeypatch.setattr(os, "read", grow)
    (answer,) = store.bulk.read("s", ["a"])
    assert isinstance(answer, StoreError) and "read the item alone" in str(answer)


def test_a_disk_that_fails_the_sync_of_a_group_has_stored_nothing_of_it(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "can_sync_filesystem", lambda _folder: True)

    def fail(_folder: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(atomic_files, "sync_filesystem", fail)
    outbox = AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock())
    audited = AuditedStore(store, outbox, "1")
    assert audited.bulk is not None
    with pytest.raises(StoreError, match="Input/output error"):
        audited.bulk.put("s", [new(f"{n}") for n in range(8)])
    assert (store.entries("s"), outbox.events(), outbox.open_intents()) == ([], [], [])
    assert not list((tmp_path / "store").rglob("drafts/*/*/*")), "no draft is left"


def test_no_single_file_is_synced_where_one_sync_does_for_all(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "can_sync_filesystem", lambda _folder: True)
    synced: list[bool] = []
    sync_filesystem, fsync = atomic_files.sync_filesystem, os.fsync
    monkeypatch.setattr(atomic_files, "sync_filesystem", lambda folder: synced.append(True) or sync_filesystem(folder))
    store.bulk.put("s", [new(f"folder/{n}") for n in range(40)])
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(False) or fsync(handle))
    synced.clear()
    store.bulk.put("s", [new(f"folder/{n}") for n in range(40, 80)])
    assert synced == [True, False], "drafts and descriptions with their folders, the folder of the items"


@pytest.mark.parametrize("unnamed", [True, False])
def test_bytes_of_new_items_have_no_name_until_they_are_in_place_where_the_system_has_that(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    monkeypatch.setattr(atomic_files, "can_sync_filesystem", lambda _folder: True)
    monkeypatch.setattr(atomic_files, "UNNAMED", unnamed)
    linked, sync = [], atomic_files.sync_filesystem
    drafts = Path(store.bulk.folder, ".millstream", "drafts")
    named = list[int]()

    def look(folder: int) -> None:
        named.append(len([path for path in drafts.glob("*/*/*") if path.read_bytes().startswith(b"body")]))
        sync(folder)

    monkeypatch.setattr(atomic_files, "sync_filesystem", look)
    monkeypatch.setattr(os, "link", lambda *args, link=os.link, **named: linked.append(link(*args, **named)))
    before = open_files()
    items = [new(f"{n}", b"body %d" % n) for n in range(20)]
    assert kinds(store.bulk.put("s", items)) == [ItemInfo] * 20
    assert named[0] == (0 if unnamed else 20) and len(linked) == (21 if unnamed else 0), "one is a trial"
    opened = open_files()
    assert kinds(store.bulk.put("s", [*items, new("20")])) == [AlreadyExistsError] * 20 + [ItemInfo]
    assert open_files() == opened, "files without a place are closed"
    assert opened - before < 20 and store.bulk.read("s", ["7"]) == [b"body 7"]


def test_a_file_that_appears_in_the_place_of_a_new_item_is_left_as_it_is(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "can_sync_filesystem", lambda _folder: True)
    move = atomic_files.UnnamedFile.move

    def late(draft: atomic_files.UnnamedFile, folder: int, name: str) -> None:
        if name == "3":
            Path(store.bulk.folder, "s", "3").write_bytes(b"by hand")
        move(draft, folder, name)

    monkeypatch.setattr(atomic_files.UnnamedFile, "move", late)
    answers = store.bulk.put("s", [new(f"{n}") for n in range(8)])
    assert kinds(answers[:3] + answers[4:]) == [ItemInfo] * 7 and kinds(answers[3:4]) == [AlreadyExistsError]
    assert store.path_of("s", "3").read_bytes() == b"by hand" and store.info("s", "3").checksum() is None


def test_a_process_that_may_have_few_files_open_names_its_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (1024, 4096))
    assert atomic_files.may_be_open(256) and not atomic_files.may_be_open(257)
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert atomic_files.may_be_open(10**6)


def test_a_space_or_a_disk_that_is_not_there_is_no_empty_one(store: LocalStore, tmp_path: Path) -> None:
    assert kinds(store.bulk.infos("t", ["a"])) == [SpaceNotFoundError]
    (answer,) = store.bulk.put("t", [new("a")])
    assert isinstance(answer, StoreError) and not store.has_space("t")
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError, match="mount its disk"):
        store.bulk.infos("s", ["a"])


def test_a_damaged_description_is_an_error_of_its_own_item(store: LocalStore, tmp_path: Path) -> None:
    store.bulk.put("s", [new("a"), new("b")])
    sidecar = next(
        (tmp_path / "store" / ".millstream" / "sidecars" / "s").rglob(f"{hashlib.sha256(b'a').hexdigest()}.json")
    )
    sidecar.write_bytes(b"{}\n")
    assert kinds(store.bulk.infos("s", ["a", "b"]))[1] is ItemInfo
    assert isinstance(store.bulk.infos("s", ["a"])[0], StoreError)


def test_threads_that_put_the_same_items_store_each_once(store: LocalStore) -> None:
    names = [f"folder/{n}" for n in range(40)]
    answers: list[list[object]] = []

    def put(order: Sequence[str]) -> None:
        for start in range(0, len(order), 8):
            answers.append(list(store.bulk.put("s", [new(name) for name in order[start : start + 8]])))

    threads = [threading.Thread(target=put, args=(names[::step],)) for step in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = kinds([answer for some in answers for answer in some])
    assert (seen.count(ItemInfo), seen.count(AlreadyExistsError)) == (40, 120)


@pytest.mark.parametrize(("how", "stride"), [("whole", 9), ("halves", 7), ("named", 9), ("each", 9)])
def test_p6_killed_at_any_step_every_item_is_whole_or_absent_and_its_event_says_which(
    tmp_path: Path, how: str, stride: int
) -> None:
    steps = [str(number) for number in range(0, 160, stride)]
    command = [sys.executable, str(CRASHER), how, str(tmp_path), *steps]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    assert outcomes[steps[0]] == "9" and outcomes[steps[-1]] == "0"
    found = set()
    for step in steps:
        database, audited = crasher.open_audited(tmp_path / step)
        audited.recover()
        stored = {entry.content_id for entry in audited.entries("s")}
        assert {event.content_id for event in audited.outbox.events() if event.content_id} == stored, step
        for name in stored:
            info, body = audited.info("s", name), audited.store.path_of("s", name).read_bytes()
            assert body == crasher.BODIES[name] and info.checksum() == hashlib.sha256(body).hexdigest()
            assert dict(info.properties) == {"name": name}
        assert audited.outbox.open_intents(others=True) == []
        found.add(len(stored))
        database.dispose()
    assert {0, len(crasher.BODIES)} <= found


def test_a_store_with_mounts_does_many_of_its_own_items_at_once(store: LocalStore, tmp_path: Path) -> None:
    far, near = LocalStore(tmp_path / "far"), MemoryStore()
    for space, where in (("far", far), ("near", near)):
        where.create_space(space)
    mounted = MountedStore(store, {"far": far, "near": near})
    assert mounted.bulk is not None
    for space in ("s", "far"):
        assert kinds(mounted.bulk.put(space, [new("a")])) == [ItemInfo]
        assert mounted.bulk.infos(space, ["a"]) == [mounted.info(space, "a")]
        assert (mounted.bulk.read(space, ["a"]), kinds(mounted.bulk.hashes(space, ["a"]))) == ([b"body"], [Digests])
    assert (len(store.entries("s")), len(far.entries("far"))) == (1, 1)
    near.put("near", "a", io.BytesIO(b"body"))
    bulk = mounted.bulk
    for answer in (bulk.infos("near", ["a"]), bulk.read("near", ["a"]), bulk.hashes("near", ["a"])):
        assert kinds(answer) == [StoreError]
    assert kinds(bulk.put("near", [new("b")])) == [StoreError]
    assert bulk_of(MountedStore(near, {"far": far})) is None


class TestTargets:
    """What a thread holds."""

    def test_threads_with_many_targets_never_hold_the_same_one_and_never_wait_for_each_other(self) -> None:
        targets, inside, most = TargetLocks(), Counter[str](), 0
        draw = random.Random(1)
        orders = [[draw.sample("abcdefgh", 5) for _ in range(50)] for _ in range(6)]

        def work(order: list[list[str]]) -> None:
            nonlocal most
            for names in order:
                with targets.hold([("1", "s", name) for name in names]):
                    inside.update(names)
                    most = max(most, *inside.values())
                    inside.subtract(names)

        threads = [threading.Thread(target=work, args=(order,), daemon=True) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert most == 1

    def test_others_go_on_meanwhile(self) -> None:
        targets = TargetLocks()
        with targets.hold([("1", "s", "a"), ("1", "s", "b")]), targets.hold([("1", "s", "c"), ("2", "s", "a")]):
            pass
        with contextlib.suppress(ValueError), targets.hold([("1", "s", "a")]):
            raise ValueError
        with targets.hold([("1", "s", "a")]):
            pass


class TestAudit:
    """Of many items at once."""

    @pytest.fixture
    def audited(self, store: LocalStore, tmp_path: Path) -> AuditedStore:
        return AuditedStore(store, AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock()), "1")

    def test_every_item_has_the_event_that_it_would_have_alone(self, audited: AuditedStore) -> None:
        audited.put("s", "alone", io.BytesIO(b"body"), mimetype="text/plain", properties={"p": "1"})
        assert audited.bulk is not None
        audited.bulk.put("s", [new("a", p="1"), NewItem("wrong", b"body", "0" * 64), new("b", p="1")])
        alone, *together = audited.outbox.events()
        assert [event.content_id for event in together] == ["a", "b"]
        assert [event.number for event in together] == sorted({event.number for event in together})
        assert len({event.at for event in (alone, *together)}) == 3
        for event in together:
            for name in (
                "action",
                "user",
                "account",
                "store",
                "store_type",
                "sha256",
                "size",
                "mimetype",
                "properties",
            ):
                assert getattr(event, name) == getattr(alone, name)
        assert audited.outbox.open_intents(others=True) == []

    def test_what_another_process_is_changing_is_busy_and_the_others_are_not(
        self, audited: AuditedStore, tmp_path: Path
    ) -> None:
        other = AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock())
        theirs = AuditedStore(audited.store, other, "1")
        other.begin(theirs.event(*_adding("busy")))
        assert audited.bulk is not None
        assert kinds(audited.bulk.put("s", [new("busy"), new("a")])) == [AuditBusyError, ItemInfo]
        assert [entry.content_id for entry in audited.entries("s")] == ["a"]

    def test_a_store_without_a_way_of_its_own_has_none_with_an_audit_either(self, audited: AuditedStore) -> None:
        assert bulk_of(MemoryStore()) is None
        assert bulk_of(AuditedStore(MemoryStore(), audited.outbox, "2")) is None
        assert bulk_of(audited) is audited.bulk is not None


def _adding(name: str) -> tuple[object, ...]:
    return AuditAction.ADD_CONTENT, "s", name


def test_items_deep_below_many_folders_need_no_open_folder_for_each_of_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_space("s")
    first, *ids = [f"{number:03d}/{'/'.join(['below'] * 60)}/item" for number in range(31)]
    store.bulk.put("s", [new(first)])  # what is open from now on stays so
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 150, hard))
    try:
        stored = store.bulk.put("s", [new(one, one.encode()) for one in ids])
        found = store.bulk.infos("s", ids)
        read = store.bulk.hashes("s", ids)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [type(one) for one in stored] == [ItemInfo] * 30
    assert [one.checksum() for one in found] == [one.sha256 for one in read]
    assert open_files() < before + len(ids)  # others come and go meanwhile


def test_items_in_many_folders_need_no_open_folder_for_each_of_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_space("s")
    first, *ids = [f"{number:03d}/item" for number in range(251)]
    store.bulk.put("s", [new(first)])  # what is open from now on stays so
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 100, hard))
    try:
        stored = store.bulk.put("s", [new(one, one.encode()) for one in ids])
        found = store.bulk.infos("s", ids)
        read = store.bulk.hashes("s", ids)
        absent = store.bulk.absent("s", [f"{one}2" for one in ids])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stored == found
    assert [one.checksum() for one in found] == [one.sha256 for one in read]
    assert len(absent) == 250


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_items_are_stored_from_the_files_of_another_local_store(tmp_path: Path) -> None:
    source, copy = LocalStore(tmp_path / "source"), LocalStore(tmp_path / "copy")
    for store in (source, copy):
        store.create_space("s")
    good, wrong = (source.put("s", name, io.BytesIO(name.encode())) for name in ("a/b", "c"))
    items = [NewItem(info.content_id, b"", info.checksum() or "", folder=source.bulk.folder) for info in (good, wrong)]
    items[1] = NewItem("c", b"", "0" * 64, folder=source.bulk.folder)
    items.append(NewItem("nowhere", b"", "0" * 64, folder=source.bulk.folder))
    stored, refused, absent = copy.bulk.put("s", items)
    assert isinstance(stored, ItemInfo) and stored.checksum() == good.checksum()
    with copy.open("s", "a/b") as file:
        assert file.read() == b"a/b"
    assert isinstance(refused, ChecksumMismatchError) and isinstance(absent, ItemNotFoundError)
    assert [entry.content_id for entry in copy.entries("s")] == ["a/b"]


def test_items_are_looked_at_and_read_in_one_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.create_space("s")
    assert all(isinstance(one, ItemInfo) for one in store.bulk.put("s", [new("a/b", b"1", p="x"), new("c", b"2")]))
    store.put("s", "large", io.BytesIO(b"x" * (SMALL + 1)))
    (tmp_path / "store" / "s" / "stray").write_bytes(b"3")
    store.path_of("s", "c").write_bytes(b"!")
    os.link(store.path_of("s", "c"), tmp_path / "other name")
    at_once = reads_at_once(AuditedStore(store, outbox(tmp_path), "1").bulk)
    assert at_once is not None
    good, changed, stray, *odd = at_once.readings("s", ["a/b", "c", "stray", "large", "gone"])
    info = store.info("s", "a/b")
    assert good == Reading(info.checksum(), sha256(b"1"), 1, info.modified, 1, "text/plain", {"p": "x"})
    assert isinstance(changed, Reading) and (changed.provider, changed.sha256) == (sha256(b"2"), sha256(b"!"))
    assert changed.links == 2
    assert isinstance(stray, Reading) and stray.provider is None
    assert all(isinstance(one, StoreError) for one in odd)
    # what is in every way as expected is told by its size; a second name, other bytes or no record are told whole
    expected = [sha256(b"1"), sha256(b"!"), sha256(b"3"), None, None]
    assert at_once.readings("s", ["a/b", "c", "stray", "large", "gone"], expected)[:3] == [1, changed, stray]
    assert at_once.readings("s", ["a/b"], [sha256(b"2")]) == [good]
    os.link(store.path_of("s", "a/b"), tmp_path / "another name")
    (linked,) = at_once.readings("s", ["a/b"], [sha256(b"1")])
    assert isinstance(linked, Reading) and linked.links == 2
    told = [
        "has more than 1,048,576 bytes, the limit of a bulk read: read the item alone",
        "is missing: list the space again",
    ]
    assert [str(one).endswith(end) for one, end in zip(odd, told, strict=True)] == [True, True]


def outbox(folder: Path) -> AuditOutbox:
    return AuditOutbox(open_engine(f"sqlite:///{folder / 'audit.db'}"), VirtualClock())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_items_that_are_absent_at_a_glance_are_those_that_can_be_put(store: LocalStore, tmp_path: Path) -> None:
    names = random.Random(7).sample(ODD_IDS, 12)
    store.bulk.put("s", [new(name) for name in names[:6]])
    os.mkfifo(tmp_path / "store" / "s" / "pipe")
    asked = [*names, "pipe", "file/below", "\0", ""]
    absent = find_absent(store.bulk, "s", asked)
    assert absent == [*names[6:], "file/below"]
    assert all(isinstance(one, ItemInfo) for one in store.bulk.put("s", [new(name) for name in absent]))
    assert find_absent(store.bulk, "none", names) == find_absent(store.bulk, "s", names) == []
