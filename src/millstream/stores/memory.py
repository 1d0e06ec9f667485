"""The store in memory, for tests and temporary data."""

from __future__ import annotations

import io
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import msgspec

from millstream.core.clock import Clock, SystemClock
from millstream.stores.checks import check_acls, check_mimetype, check_promise, check_properties
from millstream.stores.hashing import copy_stream
from millstream.stores.names import check_content_id, check_space, order_key
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    Checksum,
    ChecksumOrigin,
    Entry,
    ItemInfo,
    SpaceAccess,
    SpaceNotEmptyError,
    already_exists,
    item_not_found,
    space_not_found,
)
from millstream.stores.ranges import RangeReader, check_range


class _StoredItem(msgspec.Struct, frozen=True):
    data: bytes
    info: ItemInfo


class _Space:
    """The items of one space and, until something is added or removed, their ids in order."""

    def __init__(self) -> None:
        self.items: dict[str, _StoredItem] = {}
        self.acls: dict[str, SpaceAccess] = {}
        self._ordered: list[bytes] | None = None

    def ordered(self) -> list[bytes]:
        if self._ordered is None:
            self._ordered = sorted(map(order_key, self.items))
        return self._ordered

    def put(self, item: _StoredItem) -> None:
        if item.info.content_id not in self.items:
            self._ordered = None
        self.items[item.info.content_id] = item

    def remove(self, content_id: str) -> None:
        del self.items[content_id]
        self._ordered = None


class MemoryStore:
    """A storage provider that lives as long as this object. Its *name* is for messages and the URL only.

    The methods are those of :class:`Store`.
    """

    def __init__(self, name: str = "store", *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._spaces: dict[str, _Space] = {}
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """``memory://NAME``; unlike other stores, opening it again gives an empty store."""
        return f"memory://{self._name}"

    def spaces(self) -> Sequence[str]:
        with self._lock:
            return sorted(self._spaces, key=order_key)

    def has_space(self, space: str) -> bool:
        check_space(space)
        return space in self._spaces

    def create_space(self, space: str) -> None:
        check_space(space)
        with self._lock:
            self._spaces.setdefault(space, _Space())

    def delete_space(self, space: str) -> None:
        with self._lock:
            if self._space(space).items:
                raise SpaceNotEmptyError(f"space {space!r} in {self.url} still contains items: delete them first")
            del self._spaces[space]

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        return dict(self._space(space).acls)

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        self._space(space).acls = check_acls(acls)

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        start, low = order_key(prefix), order_key(after)
        found: list[Entry] = []
        with self._lock:
            within = self._space(space)
            ordered = within.ordered()
            place = bisect_right(ordered, low) if low >= start else bisect_left(ordered, start)
            for key in ordered[place : place + limit]:
                if not key.startswith(start):
                    break
                info = within.items[key.decode("utf-8")].info
                found.append(Entry(info.content_id, info.size, info.modified))
        return found

    def info(self, space: str, content_id: str) -> ItemInfo:
        return self._item(space, content_id).info

    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> io.BufferedReader:
        check_range(start, length)
        return io.BufferedReader(RangeReader(io.BytesIO(self._item(space, content_id).data), start, length))

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
        check_content_id(content_id)
        kept = check_properties(properties)
        check_mimetype(mimetype)
        self._space(space)
        sink = io.BytesIO()
        digests = copy_stream(source, sink)
        check_promise(content_id, digests.sha256, sha256)
        checksum = Checksum("sha256", digests.sha256, ChecksumOrigin.PROVIDER)
        info = ItemInfo(content_id, digests.size, (checksum,), mimetype, kept, self._clock.now())
        with self._lock:
            within = self._space(space)
            if create_only and content_id in within.items:
                raise already_exists(content_id, space, self.url)
            within.put(_StoredItem(sink.getvalue(), info))
        return info

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        kept = check_properties(properties)
        with self._lock:
            item = self._item(space, content_id)
            info = msgspec.structs.replace(item.info, properties=kept)
            self._space(space).put(_StoredItem(item.data, info))
        return info

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        item = self._item(space, content_id)
        source = io.BytesIO(item.data)
        return self.put(
            to_space, to_content_id, source, mimetype=item.info.mimetype, properties=item.info.properties,
            sha256=item.info.checksum(),
        )  # fmt: skip

    def delete(self, space: str, content_id: str) -> None:
        with self._lock:
            self._item(space, content_id)
            self._space(space).remove(content_id)

    def _space(self, space: str) -> _Space:
        try:
            return self._spaces[check_space(space)]
        except KeyError:
            raise space_not_found(space, self.url) from None

    def _item(self, space: str, content_id: str) -> _StoredItem:
        try:
            return self._space(space).items[check_content_id(content_id)]
        except KeyError:
            raise item_not_found(content_id, space, self.url) from None
