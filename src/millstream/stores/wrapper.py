"""A store that passes every call on to another one: the base of those that change something on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

import msgspec

from millstream.stores.protocol import DEFAULT_MIMETYPE, Entry, ItemInfo, SpaceAccess, Store
from millstream.stores.sources import needs_adoption

Answer = TypeVar("Answer")

WRITES = frozenset({"create_space", "delete_space", "put", "set_properties", "set_space_acls", "copy", "delete"})
"""The methods that change something."""


class StoreCall(msgspec.Struct, frozen=True, gc=False):
    """One call of a store's method. ``space`` and ``content_id`` are empty where the method has none."""

    method: str
    space: str = ""
    content_id: str = ""


class StoreWrapper:
    """The store *store*, every call of which passes through :meth:`perform`. The methods are those of :class:`Store`.

    A wrapper overrides :meth:`perform`, or the methods that it changes. It has no ``bulk`` unless it makes one: many
    items at once would pass by what it does.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def perform(self, call: StoreCall, act: Callable[[Store], Answer]) -> Answer:  # noqa: ARG002 - for those who override it
        """Answer *call*, which *act* makes of the store that it is given."""
        return act(self.store)

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def needs_adoption(self) -> bool:
        """See :func:`millstream.stores.needs_adoption`."""
        return needs_adoption(self.store)

    def spaces(self) -> Sequence[str]:
        return self.perform(StoreCall("spaces"), lambda store: store.spaces())

    def has_space(self, space: str) -> bool:
        return self.perform(StoreCall("has_space", space), lambda store: store.has_space(space))

    def create_space(self, space: str) -> None:
        self.perform(StoreCall("create_space", space), lambda store: store.create_space(space))

    def delete_space(self, space: str) -> None:
        self.perform(StoreCall("delete_space", space), lambda store: store.delete_space(space))

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        return self.perform(StoreCall("space_acls", space), lambda store: store.space_acls(space))

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        self.perform(StoreCall("set_space_acls", space), lambda store: store.set_space_acls(space, acls))

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        return self.perform(
            StoreCall("entries", space), lambda store: store.entries(space, prefix=prefix, after=after, limit=limit)
        )

    def info(self, space: str, content_id: str) -> ItemInfo:
        return self.perform(StoreCall("info", space, content_id), lambda store: store.info(space, content_id))

    def open(
        self, space: str, content_id: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[BinaryIO]:
        return self.perform(
            StoreCall("open", space, content_id),
            lambda store: store.open(space, content_id, start=start, length=length),
        )

    def put(
        self,
        space: str,
        content_id: str,
        source: BinaryIO,
        *,
        mimetype: str = DEFAULT_MIMETYPE,
        properties: Mapping[str, str] | None = None,
        sha256: str | None = None,
        create_only: bool = False,
    ) -> ItemInfo:
        return self.perform(
            StoreCall("put", space, content_id),
            lambda store: store.put(
                space,
                content_id,
                source,
                mimetype=mimetype,
                properties=properties,
                sha256=sha256,
                create_only=create_only,
            ),
        )

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        return self.perform(
            StoreCall("set_properties", space, content_id),
            lambda store: store.set_properties(space, content_id, properties),
        )

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        return self.perform(
            StoreCall("copy", space, content_id), lambda store: store.copy(space, content_id, to_space, to_content_id)
        )

    def delete(self, space: str, content_id: str) -> None:
        self.perform(StoreCall("delete", space, content_id), lambda store: store.delete(space, content_id))
