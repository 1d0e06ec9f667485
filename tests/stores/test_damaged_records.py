"""A damaged record beside a copy: named by its file, permanent, and replaced by a good copy."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.core.clock import VirtualClock
from millstream.stores import DamagedRecordError, ItemNotFoundError, LocalStore
from millstream.stores.audit import AuditAction, AuditedStore, AuditOutbox
from millstream.stores.bulk import bulk_of
from millstream.testing.store_content import sha256
from suite.engines import open_engine

S = "space"

DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\x00garbage"),
    "empty": lambda path: path.write_bytes(b""),
    "of another item": lambda path: path.write_bytes(_other(path)),
    "not UTF-8": lambda path: _change(path, b'"a":"1"', b'"a":"\xff"'),
    "no checksum": lambda path: _change(path, sha256(b"grain").encode(), b"forged"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a symbolic link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


def _change(path: Path, old: bytes, new: bytes) -> None:
    """What somebody wrote who knows the format: the checksum of the file is right."""
    path.write_bytes(sealed(path.read_bytes().partition(b"\n")[0].replace(old, new)))


def sealed(line: bytes) -> bytes:
    return b"%b\n%b\n" % (line, sha256(line).encode())


def _other(path: Path) -> bytes:
    return next(one for one in path.parents[1].rglob("*.json") if one != path).read_bytes()


@pytest.fixture
def outbox(tmp_path: Path) -> AuditOutbox:
    return AuditOutbox(open_engine(f"sqlite:///{tmp_path / 'audit.db'}"), VirtualClock())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    store.create_space(S)
    store.put(S, "item", io.BytesIO(b"grain"), properties={"a": "1"})
    store.put(S, "other", io.BytesIO(b"other"))
    return store


def sidecar_of(tmp_path: Path, content_id: str = "item") -> Path:
    [path] = (tmp_path / "store" / ".millstream" / "sidecars").rglob(f"{sha256(content_id.encode())}.json")
    return path


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_sidecar_is_a_permanent_error_that_names_its_file(
    store: LocalStore, tmp_path: Path, name: str
) -> None:
    path = sidecar_of(tmp_path)
    DAMAGES[name](path)
    with pytest.raises(DamagedRecordError) as caught:
        store.info(S, "item")
    assert caught.value.record == str(path)
    assert str(path) in str(caught.value)
    assert not caught.value.transient
    bulk = bulk_of(store)
    assert bulk is not None
    [damaged, good] = bulk.infos(S, ["item", "other"])
    assert isinstance(damaged, DamagedRecordError) and str(path) in str(damaged)
    assert not isinstance(good, Exception), "no other item is kept from being looked at"
    with store.open(S, "item") as file:
        assert file.read() == b"grain"


@pytest.mark.parametrize("name", ["garbage", "empty", "of another item", "a symbolic link"])
def test_an_audited_store_puts_a_good_copy_over_an_item_whose_sidecar_is_damaged(
    store: LocalStore, outbox: AuditOutbox, tmp_path: Path, name: str
) -> None:
    audited = AuditedStore(store, outbox, "local")
    DAMAGES[name](sidecar_of(tmp_path))
    audited.put(S, "item", io.BytesIO(b"grain"), properties={"a": "2"}, sha256=sha256(b"grain"))
    assert store.info(S, "item").properties == {"a": "2"}
    [event] = outbox.events()
    assert (event.action, event.sha256) == (AuditAction.ADD_CONTENT, sha256(b"grain"))


def test_an_item_whose_sidecar_is_damaged_can_be_deleted(
    store: LocalStore, outbox: AuditOutbox, tmp_path: Path
) -> None:
    DAMAGES["garbage"](sidecar_of(tmp_path))
    audited = AuditedStore(store, outbox, "local")
    audited.delete(S, "item")
    with pytest.raises(ItemNotFoundError):
        store.info(S, "item")
    assert [event.action for event in outbox.events()] == [AuditAction.DELETE_CONTENT]
    with pytest.raises(ItemNotFoundError):
        audited.delete(S, "item")


@pytest.mark.parametrize(("new", "recorded"), [(b"flour", True), (b"other flour", False)])
def test_a_change_left_open_over_a_damaged_sidecar_is_settled_by_the_bytes(
    store: LocalStore, outbox: AuditOutbox, tmp_path: Path, new: bytes, recorded: bool
) -> None:
    audited = AuditedStore(store, outbox, "local")
    event = audited.event(AuditAction.ADD_CONTENT, S, "item", sha256=sha256(b"flour"))
    outbox.begin(event, item=store.info(S, "item"))
    store.put(S, "item", io.BytesIO(new))
    DAMAGES["garbage"](sidecar_of(tmp_path))
    assert audited.recover() == 1
    assert [one.sha256 for one in outbox.events()] == ([sha256(b"flour")] if recorded else [])
    assert outbox.open_intents(others=True) == []


@pytest.mark.parametrize(
    "line", [b"[]", b'{"acl":{}}', b'{"acls":{"ann":"own"}}', b'{"acls":{"\xff":"read"}}', b"[" * 9**6]
)
def test_an_access_list_of_another_form_is_damaged(store: LocalStore, tmp_path: Path, line: bytes) -> None:
    store.set_space_acls(S, {})
    path = tmp_path / "store" / ".millstream" / "spaces" / f"{S}.json"
    path.write_bytes(sealed(line))
    with pytest.raises(DamagedRecordError, match="contains no access list") as caught:
        store.space_acls(S)
    assert caught.value.record == str(path)
