"""The conformance suite of storage providers.

Inherit :class:`StoreConformance`, say in :meth:`open_store` how a fresh, empty store is made, and pytest does the rest.
A content-addressed store, which chooses its own content ids and keeps no properties, inherits
:class:`CommonStoreConformance`.
"""

from __future__ import annotations

import abc
import io
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.stores import (
    AlreadyExistsError,
    Checksum,
    ChecksumMismatchError,
    ChecksumOrigin,
    ItemInfo,
    ItemNotFoundError,
    SpaceAccess,
    SpaceNotEmptyError,
    SpaceNotFoundError,
    Store,
    StoreError,
    StoreInputError,
    all_entries,
    open_provider,
)
from millstream.testing.store_content import ODD_IDS, Broken, sha256


class CommonStoreConformance(abc.ABC):
    """What holds for every store."""

    space = "space"
    """A space that the store may have."""

    reopens = True
    """Whether :func:`open_provider` opens the same store from its URL."""

    origin = ChecksumOrigin.PROVIDER
    """Who recorded the SHA-256 of what arrived: USER where the provider keeps only what comes with the upload."""

    @abc.abstractmethod
    def open_store(self, folder: Path) -> Store:
        """A fresh, empty store; *folder* is an empty folder for it to live in."""

    def content_id(self, data: bytes, name: str = "item") -> str:  # noqa: ARG002 - content-addressed stores need it
        """The id under which *data* is put; *name* tells items apart."""
        return name

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """The store under test, with the space in it."""
        folder = tmp_path / "store"
        folder.mkdir()
        store = self.open_store(folder)
        store.create_space(self.space)
        return store

    def put(self, store: Store, data: bytes, name: str = "item", *, create_only: bool = False) -> ItemInfo:
        """Put *data* into the space."""
        return store.put(self.space, self.content_id(data, name), io.BytesIO(data), create_only=create_only)

    def read(self, store: Store, content_id: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of an item of the space, or some of them."""
        with store.open(self.space, content_id, start=start, length=length) as source:
            return source.read()

    @pytest.mark.parametrize("data", [b"", b"a", b"\0\xff" * 1000, b"large " * 500_000], ids=["empty", "1", "2k", "3M"])
    def test_what_is_put_is_read_back(self, store: Store, data: bytes) -> None:
        info = self.put(store, data)
        assert self.read(store, info.content_id) == data
        assert store.info(self.space, info.content_id) == info
        assert info.size == len(data)

    def test_the_checksum_of_what_arrived_is_recorded(self, store: Store) -> None:
        info = self.put(store, b"grain")
        assert Checksum("sha256", sha256(b"grain"), self.origin) in info.checksums
        assert info.checksum() == sha256(b"grain")
        origins = {one.origin for one in info.checksums if one.algorithm == "sha256"}
        assert info.checksum_origin() == (
            ChecksumOrigin.PROVIDER if ChecksumOrigin.PROVIDER in origins else self.origin
        )

    def test_a_range_is_read_as_a_slice(self, store: Store) -> None:
        data = b"0123456789"
        content_id = self.put(store, data).content_id
        for start, length in itertools.product([0, 1, 9, 10, 11], [None, 0, 1, 4, 100]):
            expected = data[start:] if length is None else data[start : start + length]
            assert self.read(store, content_id, start=start, length=length) == expected, (start, length)

    def test_a_negative_range_is_refused(self, store: Store) -> None:
        content_id = self.put(store, b"grain").content_id
        for start, length in ((-1, None), (0, -1)):
            with pytest.raises(StoreInputError):
                self.read(store, content_id, start=start, length=length)

    def test_a_missing_item_is_not_found(self, store: Store) -> None:
        missing = self.content_id(b"never put")
        for ask in self._questions(store, self.space, missing):
            with pytest.raises(ItemNotFoundError):
                ask()

    def test_a_missing_space_is_not_found(self, store: Store) -> None:
        content_id = self.put(store, b"grain").content_id
        for ask in self._questions(store, "nowhere", content_id):
            with pytest.raises(SpaceNotFoundError):
                ask()
        with pytest.raises(SpaceNotFoundError):
            store.put("nowhere", content_id, io.BytesIO(b"grain"))
        with pytest.raises(SpaceNotFoundError):
            store.entries("nowhere")
        with pytest.raises(SpaceNotFoundError):
            store.delete_space("nowhere")
        assert not store.has_space("nowhere")

    def test_bytes_other_than_promised_are_not_stored(self, store: Store) -> None:
        content_id = self.content_id(b"grain")
        with pytest.raises(ChecksumMismatchError):
            store.put(self.space, content_id, io.BytesIO(b"chaff"), sha256=sha256(b"grain"))
        assert store.entries(self.space) == []
        store.put(self.space, content_id, io.BytesIO(b"grain"), sha256=sha256(b"grain").upper())
        with pytest.raises(ChecksumMismatchError):
            store.put(self.space, content_id, io.BytesIO(b"chaff"), sha256=sha256(b"grain"))
        assert self.read(store, content_id) == b"grain"

    def test_a_source_that_fails_midway_leaves_everything_as_it_was(self, store: Store) -> None:
        content_id = self.content_id(b"grain")
        with pytest.raises((OSError, StoreError)):
            store.put(self.space, content_id, Broken(b"gra"))  # type: ignore[arg-type]
        assert store.entries(self.space) == []
        self.put(store, b"grain")
        with pytest.raises((OSError, StoreError)):
            store.put(self.space, content_id, Broken(b"gra"))  # type: ignore[arg-type]
        assert self.read(store, content_id) == b"grain"

    def test_create_only_creates_only(self, store: Store) -> None:
        content_id = self.put(store, b"grain", create_only=True).content_id
        with pytest.raises(AlreadyExistsError):
            self.put(store, b"grain", create_only=True)
        assert self.read(store, content_id) == b"grain"

    def test_of_many_who_create_the_same_item_exactly_one_does(self, store: Store) -> None:
        def create(_: int) -> bool:
            try:
                self.put(store, b"grain", create_only=True)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(create, range(24))) == 1

    def test_a_deleted_item_is_gone(self, store: Store) -> None:
        content_id = self.put(store, b"grain").content_id
        kept = self.put(store, b"flour", "other").content_id
        store.delete(self.space, content_id)
        with pytest.raises(ItemNotFoundError):
            store.info(self.space, content_id)
        assert [entry.content_id for entry in store.entries(self.space)] == [kept]
        self.put(store, b"grain")
        assert self.read(store, content_id) == b"grain"

    def test_a_listing_is_in_order_and_in_chunks_whole(self, store: Store) -> None:
        put = [self.put(store, b"%d" % n, f"item {n}") for n in range(25)]
        expected = sorted(((info.content_id, info.size) for info in put), key=lambda pair: pair[0].encode("utf-8"))
        assert [(entry.content_id, entry.size) for entry in store.entries(self.space)] == expected
        for chunk in (1, 7, 25, 26):
            listed = [(entry.content_id, entry.size) for entry in all_entries(store, self.space, chunk=chunk)]
            assert listed == expected
        middle = expected[12][0]
        assert [entry.content_id for entry in store.entries(self.space, after=middle, limit=1)] == [expected[13][0]]
        assert store.entries(self.space, prefix=middle)[0].content_id == middle
        assert store.entries(self.space, limit=0) == []

    def test_copying_an_item_onto_itself_keeps_it(self, store: Store) -> None:
        content_id = self.put(store, b"grain").content_id
        copied = store.copy(self.space, content_id, self.space, content_id)
        assert (copied.size, copied.checksum()) == (5, sha256(b"grain"))
        assert self.read(store, content_id) == b"grain"

    def test_its_url_opens_the_same_store(self, store: Store) -> None:
        if not self.reopens:
            pytest.skip("this store does not outlive its object")
        info = self.put(store, b"grain")
        again = open_provider(store.url)
        assert again.url == store.url
        assert again.info(self.space, info.content_id) == info
        assert again.spaces() == store.spaces()

    @staticmethod
    def _questions(store: Store, space: str, content_id: str) -> list[Callable[[], object]]:
        return [
            lambda: store.info(space, content_id),
            lambda: store.open(space, content_id).__enter__(),
            lambda: store.set_properties(space, content_id, {}),
            lambda: store.copy(space, content_id, space, content_id),
            lambda: store.delete(space, content_id),
        ]


class StoreConformance(CommonStoreConformance):
    """What holds for a store of spaces, free content ids and properties."""

    longest_id = 1024
    """The longest content id that the store keeps, in bytes; what is longer is refused."""

    @property
    def odd_ids(self) -> list[str]:
        """Those of :data:`ODD_IDS` that the store keeps."""
        return [content_id for content_id in ODD_IDS if len(content_id.encode("utf-8")) <= self.longest_id]

    def test_spaces_are_made_listed_and_removed(self, store: Store) -> None:
        for space in ("zeta", "alpha beta", "ärger", "x-y.z"):
            store.create_space(space)
            store.create_space(space)
        assert store.spaces() == ["alpha beta", "space", "x-y.z", "zeta", "ärger"]
        store.put("zeta", "folder/item", io.BytesIO(b"grain"))
        with pytest.raises(SpaceNotEmptyError):
            store.delete_space("zeta")
        store.delete("zeta", "folder/item")
        store.delete_space("zeta")
        assert not store.has_space("zeta")
        assert "zeta" not in store.spaces()
        store.create_space("zeta")
        assert store.entries("zeta") == []

    def test_access_lists_of_spaces_are_kept_and_replaced(self, store: Store) -> None:
        assert store.space_acls(self.space) == {}
        first = {"ann": SpaceAccess.WRITE, "group-wörkers": SpaceAccess.READ}
        store.set_space_acls(self.space, first)
        store.put(self.space, "item", io.BytesIO(b"grain"))
        store.create_space(self.space)
        assert store.space_acls(self.space) == first
        assert [entry.content_id for entry in store.entries(self.space)] == ["item"]
        store.set_space_acls(self.space, {"bob": SpaceAccess.READ})
        assert store.space_acls(self.space) == {"bob": SpaceAccess.READ}
        store.create_space("other")
        assert store.space_acls("other") == {}
        store.delete(self.space, "item")
        store.delete_space(self.space)
        store.create_space(self.space)
        assert store.space_acls(self.space) == {}

    def test_an_access_list_that_cannot_be_is_refused(self, store: Store) -> None:
        for acls in (
            {"": SpaceAccess.READ},
            {"ann": "own"},
            {"\ud800": SpaceAccess.READ},
            {f"{n:0250}": "read" for n in range(999)},
        ):
            with pytest.raises(StoreInputError):
                store.set_space_acls(self.space, acls)  # type: ignore[arg-type]
        with pytest.raises(SpaceNotFoundError):
            store.set_space_acls("nowhere", {})
        with pytest.raises(SpaceNotFoundError):
            store.space_acls("nowhere")

    @pytest.mark.parametrize("space", ["", "a/b", "..\0", "a\nb", "x" * 81, "\ud800"])
    def test_a_space_name_that_cannot_be_is_refused(self, store: Store, space: str) -> None:
        with pytest.raises(StoreInputError):
            store.create_space(space)

    @pytest.mark.parametrize("space", [".", "..", ".hidden", ".millstream", "%2F", "%"])
    def test_an_odd_space_name_is_just_a_name(self, store: Store, space: str) -> None:
        before = store.spaces()
        store.create_space(space)
        store.put(space, "item", io.BytesIO(b"grain"))
        assert sorted([*before, space]) == store.spaces()
        assert [entry.content_id for entry in store.entries(space)] == ["item"]

    @pytest.mark.parametrize("content_id", ["", "a\0b", "x" * 1025, "é" * 513, "\udc80"])
    def test_a_content_id_that_cannot_be_is_refused(self, store: Store, content_id: str) -> None:
        for ask in (
            lambda: store.put(self.space, content_id, io.BytesIO(b"grain")),
            lambda: store.info(self.space, content_id),
            lambda: store.delete(self.space, content_id),
        ):
            with pytest.raises(StoreInputError):
                ask()

    def test_listing_by_what_no_id_holds_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreInputError):
            store.entries(self.space, prefix="\udc80")

    def test_odd_content_ids_are_kept_apart_and_in_order(self, store: Store) -> None:
        for number, content_id in enumerate(self.odd_ids):
            store.put(self.space, content_id, io.BytesIO(b"%d" % number), properties={"number": str(number)})
        for number, content_id in enumerate(self.odd_ids):
            assert self.read(store, content_id) == b"%d" % number
            assert store.info(self.space, content_id).properties == {"number": str(number)}
        listed = [entry.content_id for entry in all_entries(store, self.space, chunk=4)]
        assert listed == sorted(self.odd_ids, key=lambda content_id: content_id.encode("utf-8"))
        for content_id in self.odd_ids:
            store.delete(self.space, content_id)
        assert store.entries(self.space) == []

    def test_an_id_may_be_the_beginning_of_another(self, store: Store) -> None:
        ids = ["a", "a/b", "a/b/c", "a/b/c/d", "b/b", "b"]
        for round_ in (ids, ids[::-1]):
            for content_id in round_:
                store.put(self.space, content_id, io.BytesIO(content_id.encode()))
            assert [entry.content_id for entry in store.entries(self.space)] == sorted(ids)
            for content_id in round_:
                assert self.read(store, content_id) == content_id.encode()
                store.delete(self.space, content_id)

    def test_a_prefix_picks_and_after_goes_on(self, store: Store) -> None:
        for content_id in ("a", "a-", "a/1", "a/2", "a0", "ab/1", "b"):
            store.put(self.space, content_id, io.BytesIO(b""))
        expected = {
            ("a", ""): ["a", "a-", "a/1", "a/2", "a0", "ab/1"],
            ("a/", ""): ["a/1", "a/2"],
            ("a/", "a/1"): ["a/2"],
            ("a/", "b"): [],
            ("", "a/15"): ["a/2", "a0", "ab/1", "b"],
            ("", "a/"): ["a/1", "a/2", "a0", "ab/1", "b"],
            ("ab", "a"): ["ab/1"],
            ("c", ""): [],
            ("", "z"): [],
        }
        for (prefix, after), ids in expected.items():
            entries = store.entries(self.space, prefix=prefix, after=after)
            assert [entry.content_id for entry in entries] == ids, (prefix, after)

    def test_properties_and_mimetype_are_kept_and_replaced(self, store: Store) -> None:
        first = {"creator": "mill", "naïve": "日本\n", "empty": ""}
        info = store.put(self.space, "item", io.BytesIO(b"grain"), mimetype="text/plain", properties=first)
        assert (info.mimetype, info.properties) == ("text/plain", first)
        assert store.info(self.space, "item") == info
        changed = store.set_properties(self.space, "item", {"only": "this"})
        assert store.info(self.space, "item") == changed
        assert (changed.mimetype, changed.properties) == ("text/plain", {"only": "this"})
        assert changed.checksum() == sha256(b"grain")
        assert self.read(store, "item") == b"grain"
        assert store.set_properties(self.space, "item", {}).properties == {}

    @pytest.mark.parametrize("properties", [{"": "nameless"}, {"name": "\ud800"}, {"name": "x" * (1 << 20)}])
    def test_properties_that_cannot_be_kept_are_refused(self, store: Store, properties: dict[str, str]) -> None:
        with pytest.raises(StoreInputError):
            store.put(self.space, "item", io.BytesIO(b"grain"), properties=properties)
        assert store.entries(self.space) == []

    @pytest.mark.parametrize("mimetype", ["", "text/\ud800", "text/plain\n", "x" * 256])
    def test_a_mimetype_that_cannot_be_is_refused(self, store: Store, mimetype: str) -> None:
        with pytest.raises(StoreInputError):
            store.put(self.space, "item", io.BytesIO(b"grain"), mimetype=mimetype)

    def test_a_put_over_an_item_replaces_all_of_it(self, store: Store) -> None:
        store.put(self.space, "item", io.BytesIO(b"grain" * 100), mimetype="text/plain", properties={"old": "yes"})
        store.put(self.space, "item", io.BytesIO(b"flour"))
        info = store.info(self.space, "item")
        assert (info.size, info.mimetype, info.properties) == (5, "application/octet-stream", {})
        assert info.checksum() == sha256(b"flour")
        assert self.read(store, "item") == b"flour"

    def test_a_copy_takes_bytes_mimetype_and_properties(self, store: Store) -> None:
        store.create_space("other")
        store.put(self.space, "item", io.BytesIO(b"grain"), mimetype="text/plain", properties={"a": "1"})
        for space, content_id in ((self.space, "copy"), ("other", "folder/copy")):
            copied = store.copy(self.space, "item", space, content_id)
            assert copied == store.info(space, content_id)
            assert (copied.mimetype, copied.properties) == ("text/plain", {"a": "1"})
            assert copied.checksum() == sha256(b"grain")
        with pytest.raises(SpaceNotFoundError):
            store.copy(self.space, "item", "nowhere", "copy")

    def test_writers_of_one_item_leave_one_whole_version(self, store: Store) -> None:
        versions = {str(number): (b"%d " % number) * 1000 * number for number in range(1, 13)}

        def write(number: str) -> None:
            store.put(self.space, "item", io.BytesIO(versions[number]), properties={"version": number})

        def look(_: object) -> None:
            info = store.info(self.space, "item")
            expected = versions[info.properties["version"]]
            assert (info.size, info.checksum()) == (len(expected), sha256(expected))

        write("1")
        with ThreadPoolExecutor(6) as pool:
            written = [pool.submit(write, number) for number in versions]
            looked = [pool.submit(look, number) for number in range(24)]
            for future in (*written, *looked):
                future.result()
        info = store.info(self.space, "item")
        assert self.read(store, "item") == versions[info.properties["version"]]

    def test_items_and_folders_may_come_and_go_at_once(self, store: Store) -> None:
        def churn(worker: int) -> None:
            for number in range(10):
                content_id = f"shared/{number % 2}/{worker}"
                store.put(self.space, content_id, io.BytesIO(b"grain"))
                store.delete(self.space, content_id)
            store.put(self.space, f"shared/last/{worker}", io.BytesIO(b"grain"))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(churn, range(6)))
        assert [entry.content_id for entry in store.entries(self.space)] == [f"shared/last/{n}" for n in range(6)]
