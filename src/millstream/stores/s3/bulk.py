"""Many small items in a bucket at once: in threads, and with as few requests as each of them needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from millstream.stores.bulk import SMALL, FetchedItem, NewItem, Reading
from millstream.stores.hashing import Digests
from millstream.stores.names import order_key
from millstream.stores.protocol import ItemInfo, StoreError, item_not_found

if TYPE_CHECKING:
    from millstream.stores.s3.store import S3Store

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

THREADS = 8
"""Requests of one call that are under way at the same time."""

_LISTED = 1000
"""Entries beside those that are asked for that a listing may pass; then the rest is asked for one by one."""


class S3Bulk:
    """The :class:`~millstream.stores.bulk.Bulk` of *store*, which reads and fetches at once
    (:class:`~millstream.stores.bulk.ReadsAtOnce`, :class:`~millstream.stores.bulk.FetchesAtOnce`)."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        return _in_threads(lambda one: self._store.info(space, one), content_ids)

    def listed_infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        """As :meth:`infos`; that an item is not there is taken from a listing, which some servers make a moment late.

        That is enough for callers that put only new items (:meth:`put`).
        """
        try:
            listed, end = self._listed(space, content_ids)
        except StoreError as error:
            return [error] * len(content_ids)
        absent = {one for one in content_ids if one not in listed and (end is None or order_key(one) <= end)}
        found = iter(self.infos(space, [one for one in content_ids if one not in absent]))
        return [item_not_found(one, space, self._store.url) if one in absent else next(found) for one in content_ids]

    def _listed(self, space: str, content_ids: Sequence[str]) -> tuple[set[str], bytes | None]:
        """The ids among *content_ids* that are listed, up to an id (as bytes), or to the last one asked for (None)."""
        wanted, listed = set(content_ids), set[str]()
        keys = sorted(map(order_key, wanted))
        after, last, passed = keys[0][:-1].decode("utf-8", "ignore"), keys[-1], 0
        while True:
            page = self._store.entries(space, after=after, limit=_LISTED)
            listed.update(entry.content_id for entry in page if entry.content_id in wanted)
            if len(page) < _LISTED or order_key(page[-1].content_id) >= last:
                return listed, None
            passed, after = passed + len(page), page[-1].content_id
            if passed > len(keys) + _LISTED:
                return listed, order_key(after)

    def read(self, space: str, content_ids: Sequence[str]) -> Sequence[bytes | StoreError]:
        return _in_threads(lambda one: self._read(space, one), content_ids)

    def _read(self, space: str, content_id: str) -> bytes:
        with self._store.open(space, content_id) as file:
            data = file.read(SMALL + 1)
        if len(data) > SMALL:
            raise too_large(space, content_id)
        return data

    def readings(
        self, space: str, content_ids: Sequence[str], expected: Sequence[str | None] = ()
    ) -> Sequence[int | Reading | StoreError]:
        found = _in_threads(lambda one: self._store.reading(space, one), content_ids)
        return [
            one.size if isinstance(one, Reading) and one.sha256 == one.provider == sha256 else one
            for one, sha256 in zip_longest(found, expected)
        ]

    def fetch(self, space: str, sizes: Mapping[str, int]) -> Sequence[FetchedItem | StoreError]:
        return _in_threads(lambda one: self._store.fetch(space, one, sizes[one]), list(sizes))

    def hashes(self, space: str, content_ids: Sequence[str]) -> Sequence[Digests | StoreError]:
        read = self.read(space, content_ids)
        return [
            one if isinstance(one, StoreError) else Digests(len(one), {"sha256": hashlib.sha256(one).hexdigest()})
            for one in read
        ]

    def put(self, space: str, items: Sequence[NewItem]) -> Sequence[ItemInfo | StoreError]:
        return _in_threads(lambda one: self._store.put_new(space, one), items)


def too_large(space: str, content_id: str, limit: int = SMALL) -> StoreError:
    """The error of an item of more bytes than *limit*."""
    return StoreError(
        f"item {content_id!r} in space {space!r} exceeds {limit:,} bytes, the limit of a bulk read: read the item alone"
    )


def _in_threads(act: Callable[[Asked], Answer], asked: Sequence[Asked]) -> list[Answer | StoreError]:
    def answer(one: Asked) -> Answer | StoreError:
        try:
            return act(one)
        except StoreError as error:
            return error

    if len(asked) <= 1:
        return [answer(one) for one in asked]
    with ThreadPoolExecutor(min(THREADS, len(asked)), thread_name_prefix="s3-bulk") as pool:
        return list(pool.map(answer, asked))
