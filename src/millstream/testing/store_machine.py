"""A rule-based machine that compares any store with a dictionary.

``store_machine(open_store)`` gives the machine's class; its ``TestCase`` is what pytest runs::

    TestMyStoreMachine = store_machine(lambda: MyStore(…)).TestCase
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.stores import AlreadyExistsError, ItemNotFoundError, Store, all_entries

SPACE = "space"

segments = st.sampled_from(["", "a", "b", "a b", ".", "..", "é", "%2F", "~", "x" * 300])
content_ids = st.lists(segments, min_size=1, max_size=3).map("/".join).filter(bool)
beginnings = st.one_of(st.just(""), content_ids)
properties = st.dictionaries(st.sampled_from(["creator", "naïve"]), st.text("aé\n", max_size=3))


class ExpectedItem(msgspec.Struct, frozen=True):
    """What an item should be."""

    data: bytes
    properties: dict[str, str]


class StoreMachine(RuleBasedStateMachine):
    """Puts, copies, changes and deletes at random; after every step the store is what the dictionary says.

    After every ``whole_every``-th step, and at the end, all items are read; after the others those that the step named.
    """

    open_store: Callable[[], Store]
    whole_every = 1

    @initialize()
    def begin(self) -> None:
        self.steps, self.named = 0, set[str]()
        self.store = type(self).open_store()
        self.store.create_space(SPACE)
        self.model: dict[str, ExpectedItem] = {}

    @rule(content_id=content_ids, data=st.binary(max_size=10), kept=properties, create_only=st.booleans())
    def put(self, content_id: str, data: bytes, kept: dict[str, str], create_only: bool) -> None:
        self.named.add(content_id)
        if create_only and content_id in self.model:
            with pytest.raises(AlreadyExistsError):
                self.store.put(SPACE, content_id, io.BytesIO(data), create_only=True)
            return
        self.store.put(SPACE, content_id, io.BytesIO(data), properties=kept, create_only=create_only)
        self.model[content_id] = ExpectedItem(data, kept)

    @rule(content_id=content_ids, kept=properties)
    def set_properties(self, content_id: str, kept: dict[str, str]) -> None:
        self.named.add(content_id)
        if content_id not in self.model:
            with pytest.raises(ItemNotFoundError):
                self.store.set_properties(SPACE, content_id, kept)
            return
        self.store.set_properties(SPACE, content_id, kept)
        self.model[content_id] = msgspec.structs.replace(self.model[content_id], properties=kept)

    @rule(content_id=content_ids, to=content_ids)
    def copy(self, content_id: str, to: str) -> None:
        self.named |= {content_id, to}
        if content_id not in self.model:
            with pytest.raises(ItemNotFoundError):
                self.store.copy(SPACE, content_id, SPACE, to)
            return
        self.store.copy(SPACE, content_id, SPACE, to)
        self.model[to] = self.model[content_id]

    @rule(content_id=content_ids)
    def delete(self, content_id: str) -> None:
        if content_id not in self.model:
            with pytest.raises(ItemNotFoundError):
                self.store.delete(SPACE, content_id)
            return
        self.store.delete(SPACE, content_id)
        del self.model[content_id]

    @rule(prefix=beginnings, after=beginnings, limit=st.integers(1, 4))
    def list_some(self, prefix: str, after: str, limit: int) -> None:
        expected = [id_ for id_ in self._ids() if id_.startswith(prefix) and id_.encode() > after.encode()]
        entries = self.store.entries(SPACE, prefix=prefix, after=after, limit=limit)
        assert [entry.content_id for entry in entries] == expected[:limit]

    @invariant()
    def is_as_expected(self) -> None:
        self.steps += 1
        self._compare(whole=self.steps % self.whole_every == 0)

    def teardown(self) -> None:
        if self.whole_every > 1 and hasattr(self, "store"):
            self._compare(whole=True)

    def _compare(self, *, whole: bool) -> None:
        listed = list(all_entries(self.store, SPACE, chunk=3))
        assert [entry.content_id for entry in listed] == self._ids()
        read = {entry.content_id for entry in listed} if whole else self.named
        self.named = set()
        for entry in listed:
            if entry.content_id not in read:
                assert entry.size == len(self.model[entry.content_id].data)
                continue
            expected = self.model[entry.content_id]
            info = self.store.info(SPACE, entry.content_id)
            assert entry.size == info.size == len(expected.data)
            assert info.checksum() == hashlib.sha256(expected.data).hexdigest()
            assert info.properties == expected.properties
            with self.store.open(SPACE, entry.content_id) as source:
                assert source.read() == expected.data

    def _ids(self) -> list[str]:
        return sorted(self.model, key=lambda content_id: content_id.encode("utf-8"))


def store_machine(make: Callable[[], Store], *, whole_every: int = 1) -> type[StoreMachine]:
    """The machine for the stores that *make* makes; each call gives a fresh, empty one."""
    return type("Machine", (StoreMachine,), {"open_store": staticmethod(make), "whole_every": whole_every})
