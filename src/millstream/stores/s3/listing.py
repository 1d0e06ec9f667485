"""Listings of a bucket, a chunk at a time, in the order of the UTF-8 bytes (which is S3's own)."""

from __future__ import annotations

from collections.abc import Iterator
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
    low = marker.encode("utf-8") + order_key(after)
    entries: list[Entry] = []
    while len(entries) < limit:
        start = low[:MAX_KEY_BYTES].decode("utf-8", "ignore")
        size = min(PAGE, limit - len(entries))
        page = calls("list_objects_v2", Prefix=marker + prefix, StartAfter=start, MaxKeys=size)
        found = page.get("Contents", ())
        entries += [_entry(line, marker) for line in found if line["Key"].encode("utf-8") > low]
        if not page.get("IsTruncated") or not found:
            break
        low = found[-1]["Key"].encode("utf-8")
    return entries


def list_prefixes(calls: S3Calls, prefix: str) -> Iterator[str]:
    """What the keys below *prefix* begin with, up to the next "/"."""
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


def _entry(line: dict[str, Any], marker: str) -> Entry:
    return Entry(line["Key"][len(marker) :], int(line["Size"]), microseconds(line.get("LastModified")))
