"""A folder of content-addressed files as a store."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.core.cid import CidForm, cid_of
from millstream.stores import (
    CAS_SPACE,
    AlreadyExistsError,
    CasStore,
    ChecksumMismatchError,
    StoreInputError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millstream.stores.listing import OrderedListing
from millstream.testing.damage import flip_bit


@pytest.fixture
def store(tmp_path: Path) -> CasStore:
    return CasStore(tmp_path / "cas")


def test_only_files_named_by_cid_are_items(store: CasStore, tmp_path: Path) -> None:
    data = b"grain"
    (tmp_path / "cas" / cid_of(data)).write_bytes(data)
    (tmp_path / "cas" / "README").write_bytes(b"")
    (tmp_path / "cas" / f".{cid_of(b'x')}.tmp").write_bytes(b"")
    (tmp_path / "cas" / cid_of(b"folder")).mkdir()
    (tmp_path / "cas" / cid_of(b"link")).symlink_to(tmp_path / "cas" / "README")
    assert [entry.content_id for entry in store.entries(CAS_SPACE)] == [cid_of(data)]


def test_items_are_created_on_a_disk_without_hard_links(
    store: CasStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store.put(CAS_SPACE, cid_of(b"grain"), io.BytesIO(b"grain"), create_only=True)
    with pytest.raises(AlreadyExistsError):
        store.put(CAS_SPACE, cid_of(b"grain"), io.BytesIO(b"grain"), create_only=True)
    assert [path.name for path in (tmp_path / "cas").iterdir()] == [cid_of(b"grain")]


def test_a_listing_is_not_complete_where_the_disk_was_unmounted_meanwhile(
    store: CasStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(CAS_SPACE, cid_of(b"grain"), io.BytesIO(b"grain"))
    walk = OrderedListing.walk

    def unmount_and_walk(*asked: Any) -> Any:
        (tmp_path / "cas").rename(tmp_path / "aside")
        (tmp_path / "cas").mkdir()
        return walk(*asked)

    monkeypatch.setattr(OrderedListing, "walk", unmount_and_walk)
    with pytest.raises(StoreUnavailableError, match="is its disk mounted"):
        store.entries(CAS_SPACE)


def test_drafts_that_killed_writers_left_are_removed_after_a_day(store: CasStore, tmp_path: Path) -> None:
    old, new = (tmp_path / "cas" / f".{cid_of(b'x')}.{digit * 12}.tmp" for digit in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    store.put(CAS_SPACE, cid_of(b"y"), io.BytesIO(b"y"))
    assert old.exists(), "a put lists no folder"
    store.clear_drafts()
    assert set((tmp_path / "cas").iterdir()) == {new, tmp_path / "cas" / cid_of(b"y")}


def test_bytes_that_do_not_hash_to_the_id_are_refused(store: CasStore) -> None:
    with pytest.raises(ChecksumMismatchError):
        store.put(CAS_SPACE, cid_of(b"grain"), io.BytesIO(b"chaff"))
    with pytest.raises(StoreInputError):
        store.put(CAS_SPACE, "README", io.BytesIO(b"chaff"))
    assert store.entries(CAS_SPACE) == []


@pytest.mark.parametrize("form", [CidForm.UNIXFS_V0, CidForm.UNIXFS_V1])
def test_a_name_of_ipfs_is_checked_and_is_no_checksum(store: CasStore, form: CidForm) -> None:
    data = bytes(300_000)
    content_id = cid_of(data, form)
    assert store.put(CAS_SPACE, content_id, io.BytesIO(data)).checksums == ()
    with pytest.raises(ChecksumMismatchError, match=content_id):
        store.put(CAS_SPACE, content_id, io.BytesIO(data[1:]))
    assert [entry.content_id for entry in store.entries(CAS_SPACE)] == [content_id]
    with store.open(CAS_SPACE, content_id) as file:
        assert file.read() == data


def test_a_put_repairs_a_damaged_file(store: CasStore) -> None:
    content_id = cid_of(b"grain")
    store.put(CAS_SPACE, content_id, io.BytesIO(b"grain"))
    flip_bit(store.path_of(CAS_SPACE, content_id))
    assert store.path_of(CAS_SPACE, content_id).read_bytes() != b"grain"
    store.put(CAS_SPACE, content_id, io.BytesIO(b"grain"))
    assert store.path_of(CAS_SPACE, content_id).read_bytes() == b"grain"


def test_properties_and_other_spaces_are_refused(store: CasStore) -> None:
    content_id = cid_of(b"grain")
    with pytest.raises(StoreRefusedError):
        store.put(CAS_SPACE, content_id, io.BytesIO(b"grain"), properties={"a": "1"})
    store.put(CAS_SPACE, content_id, io.BytesIO(b"grain"), properties={})
    assert store.set_properties(CAS_SPACE, content_id, {}).properties == {}
    with pytest.raises(StoreRefusedError):
        store.set_properties(CAS_SPACE, content_id, {"a": "1"})
    with pytest.raises(StoreRefusedError):
        store.create_space("other")
    with pytest.raises(StoreRefusedError):
        store.delete_space(CAS_SPACE)


def test_a_missing_folder_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    store = CasStore(tmp_path / "unmounted", create=False)
    with pytest.raises(StoreUnavailableError, match="mount"):
        store.entries(CAS_SPACE)
