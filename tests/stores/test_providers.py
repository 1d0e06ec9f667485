"""From URLs to stores."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from millstream.core.url_schemes import URL_SCHEMES
from millstream.stores import (
    CasStore,
    LocalStore,
    MemoryStore,
    MountedStore,
    StoreInputError,
    StoreUnavailableError,
    open_provider,
)
from millstream.stores.provider_schemes import PROVIDER_SCHEMES, ProviderScheme, object_prefix
from millstream.stores.sources import is_source_url, local_folder


@pytest.mark.parametrize("scheme", PROVIDER_SCHEMES)
def test_a_scheme_of_the_table_opens_a_store_that_is_what_the_table_says(tmp_path: Path, scheme: str) -> None:
    kind = PROVIDER_SCHEMES[scheme]
    store = open_provider(f"{scheme}://{tmp_path}" if kind.in_folder else f"{scheme}://name")
    assert local_folder(store.url) == (tmp_path if kind.in_folder else None)
    assert is_source_url(store.url) == (kind.is_source == "always")


def test_the_objects_of_two_urls_overlap_whatever_way_their_bucket_is_reached() -> None:
    def overlap(one: str, other: str) -> bool:
        found = object_prefix(one).overlaps(object_prefix(other))
        assert found == object_prefix(other).overlaps(object_prefix(one))
        return found

    assert overlap("s3://b/p?region=a", "s3://b/p/q?profile=c") and overlap("s3://b", "s3://b/p")
    assert overlap("s3://b/a%20b?endpoint=http://h:9/", "s3://b/a b/c?endpoint=http://h:9")
    assert not overlap("s3://b/p", "s3://b/pq") and not overlap("s3://b/p", "s3://c/p")
    assert not overlap("s3://b/p", "s3://b/p?endpoint=http://h") and not overlap("s3://b/p", "file:///b/p")
    assert object_prefix("s3://b/p", "s") == object_prefix("s3://b/p/s/") == (("s3", "b", ""), "p/s/")


def test_a_scheme_of_folders_that_nothing_opens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemes = {**PROVIDER_SCHEMES, "tape": ProviderScheme(in_folder=True)}
    monkeypatch.setattr("millstream.stores.provider_schemes.PROVIDER_SCHEMES", schemes)
    with pytest.raises(StoreInputError, match="no storage provider for the scheme 'tape'"):
        open_provider(f"tape://{tmp_path}")


@pytest.mark.parametrize("scheme", URL_SCHEMES)
def test_a_server_is_no_storage_provider(scheme: str) -> None:
    with pytest.raises(StoreInputError):
        open_provider(f"{scheme}://name")


@pytest.mark.parametrize(("scheme", "kind"), [("file", LocalStore), ("cas", CasStore)])
def test_a_folder_url_opens_a_store_in_the_folder(tmp_path: Path, scheme: str, kind: type) -> None:
    store = open_provider(f"{scheme}://{tmp_path}/a%20b", create=True)
    assert isinstance(store, kind)
    assert (tmp_path / "a b").is_dir()
    assert store.url == f"{scheme}://{tmp_path}/a%20b"


@pytest.mark.parametrize("kind", [LocalStore, CasStore])
def test_the_url_of_a_folder_whose_name_is_no_text_leads_to_it(tmp_path: Path, kind: type) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    store = kind(folder)
    assert open_provider(store.url).url == store.url
    assert local_folder(store.url) == folder


def test_a_relative_folder_is_one_of_the_present_directory(tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert open_provider("file:store").url == f"file://{tmp_path}/store"
    finally:
        os.chdir(before)


def test_nothing_is_made_unless_asked_for(tmp_path: Path) -> None:
    store = open_provider(f"file://{tmp_path}/typo")
    with pytest.raises(StoreUnavailableError):
        store.spaces()
    assert not (tmp_path / "typo").exists()


def test_memory_stores_are_new_each_time() -> None:
    store = open_provider("memory://name")
    assert isinstance(store, MemoryStore)
    store.create_space("space")
    assert store.url == "memory://name"
    assert open_provider("memory://name").spaces() == []


def test_mounts_are_part_of_the_url(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/base?mount=a%20b:file://{tmp_path}/x%20%26&mount=cas:cas://{tmp_path}/cas"
    store = open_provider(url, create=True)
    assert isinstance(store, MountedStore)
    assert store.spaces() == ["cas"]
    store.create_space("a b")
    store.put("a b", "item", io.BytesIO(b"grain"))
    again = open_provider(store.url)
    assert again.spaces() == ["a b", "cas"]
    assert again.info("a b", "item").size == 5
    assert (tmp_path / "x &" / "a b" / "item").read_bytes() == b"grain"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "folder",
        "/folder",
        "s4://bucket",
        "file://host/folder",
        "file://folder",
        "file:",
        "file:///a%00b",
        "file:///a#b",
        "file:///a?mount=cas",
        "file:///a?other=cas:cas:///b",
        "file:///a?mount=cas:ftp://b",
    ],
)
def test_a_url_that_names_no_store_is_refused_with_advice(url: str) -> None:
    with pytest.raises(StoreInputError, match=r"write|must (be|name)"):
        open_provider(url)


def test_a_mounted_store_is_not_mounted_upon(tmp_path: Path) -> None:
    mounted = MountedStore(LocalStore(tmp_path / "a"), {"b": LocalStore(tmp_path / "b")})
    with pytest.raises(StoreInputError):
        MountedStore(mounted, {"c": LocalStore(tmp_path / "c")})


def test_copies_cross_from_one_store_to_the_other(tmp_path: Path) -> None:
    store = MountedStore(LocalStore(tmp_path / "a"), {"there": LocalStore(tmp_path / "b")})
    for space in ("here", "there"):
        store.create_space(space)
    store.put("here", "item", io.BytesIO(b"grain"), mimetype="text/plain", properties={"a": "1"})
    copied = store.copy("here", "item", "there", "copy")
    assert (copied.mimetype, copied.properties, copied.size) == ("text/plain", {"a": "1"}, 5)
    assert (tmp_path / "b" / "there" / "copy").exists()
