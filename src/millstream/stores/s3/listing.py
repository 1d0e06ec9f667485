"""Listings of a bucket, a chunk at a time, in the order of the UTF-8 bytes (which is S3's own)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from millstream.stores.names import order_key
from millstream.stores.protocol import Entry
from millstream.stores.s3.client import S3Calls
from millstream.stores.s3.limits import MAX_KEY_BYTES
from millstream.stores.s3.objects import microseconds

PAGE = 1000
"""S3 lists no more in one answer."""


def list_entries(calls: S3Calls, marker: str, prefix: str, after: str, limit: int) -> list[Entry]:
    """Up to *limit* entries of the space with the *marker* (which is none), as ``Store.entries`` tells them."""
    order_key(prefix)
    lines = list_objects(calls, marker, prefix, order_key(after), min(PAGE, limit)) if limit > 0 else iter(())
    return [_entry(line, marker) for line in itertools.islice(lines, limit)]


def list_objects(calls: S3Calls, marker: str, prefix: str, after: bytes, page: int) -> Iterator[Mapping[str, Any]]:
    """S3's lines of the keys that begin with *marker* and *prefix* and come after *marker* and *after*.

    A request asks for *page* keys; the key *marker* itself is not listed.
    """
    low = marker.encode("utf-8") + after
    while True:
        start = low[:MAX_KEY_BYTES].decode("utf-8", "ignore")
        answer = calls("list_objects_v2", Prefix=marker + prefix, StartAfter=start, MaxKeys=page)
        lines = answer.get("Contents", ())
        yield from (line for line in lines if line["Key"].encode("utf-8") > low)
        if not answer.get("IsTruncated") or not lines:
            return
        low = lines[-1]["Key"].encode("utf-8")


def list_prefixes(calls: S3Calls, prefix: str) -> Iterator[str]:
    """The common prefixes of the keys below *prefix*, up to the next "/"."""
    arguments: dict[str, Any] = {"Prefix": prefix, "Delimiter": "/"}
    while True:
        page = calls("list_objects_v2", **arguments)
        yield from (line["Prefix"] for line in page.get("CommonPrefixes", ()))
        if not page.get("IsTruncated"):
            return
        arguments["ContinuationToken"] = page["NextContinuationToken"]


def first_keys(calls: S3Calls, prefix: str, count: int) -> list[str]:
    """The first *count* keys that begin with *prefix*."""
    page = calls("list_objects_v2", Prefix=prefix, MaxKeys=count)
    return [line["Key"] for line in page.get("Contents", ())]


def _entry(line: Mapping[str, Any], marker: str) -> Entry:
    return Entry(line["Key"][len(marker) :], int(line["Size"]), microseconds(line.get("LastModified")))
