"""The conformance suite of sources: providers of content that other programs wrote, which are never written to.

Inherit :class:`SourceConformance`, say in :meth:`open_source` how a source of given items is made, and pytest does the
rest.
"""

from __future__ import annotations

import abc
import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.stores import (
    EntryKind,
    ItemNotFoundError,
    SpaceAccess,
    SpaceNotFoundError,
    Store,
    StoreInputError,
    StoreRefusedError,
    all_entries,
    find_entry,
    needs_adoption,
    open_provider,
)

ITEMS = {
    ".hidden": b"h",
    "50%": b"percent",
    "a": b"a",
    "a b/c d": b"spaces",
    "a-": b"a-",
    "b/.hidden/x": b"deep",
    "b/1": b"1",
    "b/2": b"22",
    "b/a%20b": b"not decoded",
    "b0": b"b0",
    "new\nline": b"n",
    "sub/space/item": b"looks like our own layout",
    "tab\there": b"t",
    "x" * 255: b"long",
    "y/" * 300 + "z": b"many folders",
    "zoë": b"z",
    "日本/é": b"\0\xff" * 1000,
}
"""Items of a source by id, in their order."""


class SourceConformance(abc.ABC):
    """What holds for every source."""

    space = "space"

    @abc.abstractmethod
    def open_source(self, folder: Path, items: Mapping[str, bytes], *, exclude: tuple[str, ...] = ()) -> Store:
        """A source with *items* as its space; *folder* is an empty folder for it to live in."""

    def items(self) -> dict[str, bytes]:
        """Those of :data:`ITEMS` that the source can hold."""
        return dict(ITEMS)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Store:
        """The source under test."""
        return self.open_source(tmp_path, self.items())

    def test_all_items_are_listed_in_order(self, source: Store) -> None:
        expected = [(content_id, len(data)) for content_id, data in self.items().items()]
        assert expected == sorted(expected, key=lambda item: item[0].encode("utf-8"))
        assert [(entry.content_id, entry.size) for entry in source.entries(self.space)] == expected
        for chunk in (1, 3, len(expected)):
            listed = [(entry.content_id, entry.size) for entry in all_entries(source, self.space, chunk=chunk)]
            assert listed == expected

    def test_a_listing_begins_at_a_prefix_and_resumes_after_an_id(self, source: Store) -> None:
        ids = list(self.items())
        prefixes = ["", "b", "b/", "b/1", "b/.", "50%", "a ", "日", "none", "\x7f"]
        for prefix in prefixes:
            for after in ["", *ids, "b/", "b/15", "c", "\U0010ffff"]:
                expected = [
                    one for one in ids if one.encode().startswith(prefix.encode()) and one.encode() > after.encode()
                ]
                entries = source.entries(self.space, prefix=prefix, after=after)
                assert [entry.content_id for entry in entries] == expected, (prefix, after)
        assert source.entries(self.space, limit=0) == []

    def test_bytes_and_ranges_are_read(self, source: Store) -> None:
        for content_id, data in self.items().items():
            with source.open(self.space, content_id) as file:
                assert file.read() == data
            with source.open(self.space, content_id, start=1, length=2) as file:
                assert file.read() == data[1:3]
            assert source.info(self.space, content_id).size == len(data)
        with pytest.raises(StoreInputError):
            source.open(self.space, "a", start=-1).__enter__()

    def test_what_is_not_there_is_not_found(self, source: Store) -> None:
        for missing in ("nothing", "a/b", "b/", "b", "b//1", "../a", "./a", "/a", "a/", "b/1/", "50%25"):
            with pytest.raises(ItemNotFoundError):
                source.info(self.space, missing)
            with pytest.raises(ItemNotFoundError):
                source.open(self.space, missing).__enter__()
            assert find_entry(source, self.space, missing) is None
        for space in ("nowhere", "b"):
            assert not source.has_space(space)
            with pytest.raises(SpaceNotFoundError):
                source.entries(space)
            with pytest.raises(SpaceNotFoundError):
                source.info(space, "a")
        with pytest.raises(StoreInputError):
            source.info(self.space, "x" * 1025)

    def test_every_entry_has_a_version(self, source: Store) -> None:
        entries = source.entries(self.space)
        assert all(entry.version and entry.kind == EntryKind.FILE for entry in entries)
        assert [find_entry(source, self.space, entry.content_id) for entry in entries] == entries

    def test_nothing_is_ever_written(self, source: Store) -> None:
        before = source.entries(self.space)
        source.create_space(self.space)
        for write in (
            lambda: source.put(self.space, "a", io.BytesIO(b"other")),
            lambda: source.put(self.space, "new", io.BytesIO(b"new"), create_only=True),
            lambda: source.set_properties(self.space, "a", {"a": "b"}),
            lambda: source.copy(self.space, "a", self.space, "copy"),
            lambda: source.delete(self.space, "a"),
            lambda: source.delete_space(self.space),
            lambda: source.create_space("other"),
            lambda: source.set_space_acls(self.space, {"ann": SpaceAccess.READ}),
        ):
            with pytest.raises(StoreRefusedError, match="Millstream never writes there"):
                write()
        assert source.entries(self.space) == before
        assert source.space_acls(self.space) == {}
        assert source.spaces() == [self.space]

    def test_what_is_excluded_is_as_if_it_were_not_there(self, tmp_path: Path) -> None:
        source = self.open_source(tmp_path, self.items(), exclude=("50%", "b/[12]", "y/", "*0", "x*", "**/é"))
        gone = {"50%", "b/.hidden/x", "b/1", "b/2", "b0", "x" * 255, "y/" * 300 + "z", "日本/é"}
        listed = [entry.content_id for entry in source.entries(self.space)]
        assert [one for one in listed if not one.endswith("/")] == [one for one in self.items() if one not in gone]
        for content_id in gone & self.items().keys():
            with pytest.raises(ItemNotFoundError):
                source.info(self.space, content_id)

    def test_its_url_opens_the_same_source(self, tmp_path: Path) -> None:
        source = self.open_source(tmp_path, self.items(), exclude=("a b/**", "*?&#"))
        again = open_provider(source.url)
        assert again.url == source.url
        assert again.entries(self.space) == source.entries(self.space)
        assert needs_adoption(again)
        assert needs_adoption(open_provider(f"{source.url}&requests=1000"))
