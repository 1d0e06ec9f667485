"""Listings of a bucket, a chunk at a time, in the order of the UTF-8 bytes (which is S3's own)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from millstream.stores.names import order_key
from millstream.stores.protocol import Entry, StoreError, StoreUnavailableError
from millstream.stores.s3.client import S3Calls
from millstream.stores.s3.limits import MAX_KEY_BYTES
from millstream.stores.s3.objects import microseconds

PAGE = 1000
"""S3 lists no more in one answer."""

MOST_EMPTY = 10_000
"""Pages without keys in a row after which a server is not asked for another one."""


def list_entries(calls: S3Calls, marker: str, prefix: str, after: str, limit: int) -> list[Entry]:
    """Up to *limit* entries of the space with the *marker* (which is none), as ``Store.entries`` tells them."""
    order_key(prefix)
    lines = list_objects(calls, marker, prefix, order_key(after), min(PAGE, limit)) if limit > 0 else iter(())
    return [_entry(line, marker) for line in itertools.islice(lines, limit)]


def list_objects(calls: S3Calls, marker: str, prefix: str, after: bytes, page: int) -> Iterator[Mapping[str, Any]]:
    """S3's lines of the keys that begin with *marker* and *prefix* and come after *marker* and *after*.

    A request asks for *page* keys; the key *marker* itself is not listed. Raises :class:`StoreError` where the server
    lists keys in another order than that of their bytes, as directory buckets do.
    """
    low = marker.encode("utf-8") + after
    arguments: dict[str, Any] = {"Prefix": marker + prefix, "MaxKeys": page}
    start, before = _after(low), b""
    empty = 0
    while True:
        answer = calls("list_objects_v2", **arguments, **start)
        is_new = False
        for line in answer.get("Contents", ()):
            key = line["Key"].encode("utf-8")
            if not line["Key"].startswith(marker + prefix):
                raise _not_asked_for(calls, line["Key"], marker + prefix)
            if key <= before:
                raise _out_of_order(calls, key, before)
            before = key
            if key > low:
                low, is_new = key, True
                yield line
        if not answer.get("IsTruncated"):
            return
        if is_new:
            start, before, empty = _after(low), b"", 0
        else:  # a page without keys, or with keys that were not asked for
            empty += 1
            start = {"ContinuationToken": _next_page(calls, answer, start, empty)}


def _after(key: bytes) -> dict[str, str]:
    return {"StartAfter": key[:MAX_KEY_BYTES].decode("utf-8", "ignore")}


def list_prefixes(calls: S3Calls, prefix: str) -> Iterator[str]:
    """The common prefixes of the keys below *prefix*, up to the next "/"."""
    for page in _pages(calls, Prefix=prefix, Delimiter="/"):
        yield from (line["Prefix"] for line in page.get("CommonPrefixes", ()))


def first_keys(calls: S3Calls, prefix: str, count: int) -> list[str]:
    """The first *count* keys that begin with *prefix*."""
    pages = _pages(calls, Prefix=prefix, MaxKeys=count)
    return list(itertools.islice((line["Key"] for page in pages for line in page.get("Contents", ())), count))


def _pages(calls: S3Calls, **arguments: Any) -> Iterator[Mapping[str, Any]]:
    """The pages of one listing; some may have no keys although others follow."""
    token: dict[str, str] = {}
    empty = 0
    while True:
        page = calls("list_objects_v2", **arguments, **token)
        yield page
        if not page.get("IsTruncated"):
            return
        empty = 0 if page.get("Contents") or page.get("CommonPrefixes") else empty + 1
        token = {"ContinuationToken": _next_page(calls, page, token, empty)}


def _next_page(calls: S3Calls, page: Mapping[str, Any], asked: Mapping[str, str], empty: int) -> str:
    """The token of the page after *page*, which was asked for with *asked*; it was the *empty*-th in a row without
    keys."""
    if empty >= MOST_EMPTY:
        raise StoreUnavailableError(
            f"{calls.address} answered {empty:,} times in a row that more keys follow, but listed none: remove old "
            "versions and delete markers from the bucket, or report it to the provider of the server"
        )
    token: str | None = page.get("NextContinuationToken")
    if not token or token == asked.get("ContinuationToken"):
        raise StoreUnavailableError(
            f"a listing of {calls.address} is incomplete: the server says that more keys follow, but not how to get "
            "them (no new NextContinuationToken); list again, or report it to the provider of the server"
        )
    return token


def _not_asked_for(calls: S3Calls, key: str, prefix: str) -> StoreError:
    return StoreError(
        f"{calls.address} was asked for the keys that begin with {prefix!r} and lists {key!r}: report it to the "
        "provider of the server"
    )


def _out_of_order(calls: S3Calls, key: bytes, before: bytes) -> StoreError:
    return StoreError(
        f"{calls.address} lists the key {key.decode()!r} after {before.decode()!r}: Millstream needs a server that "
        "lists keys in the order of their UTF-8 bytes, so use a general purpose bucket in place of a directory bucket"
    )


def _entry(line: Mapping[str, Any], marker: str) -> Entry:
    return Entry(line["Key"][len(marker) :], int(line["Size"]), microseconds(line.get("LastModified")))
