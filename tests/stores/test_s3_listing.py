"""Listings of servers that send pages without keys, or keys in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millstream.stores import StoreError, StoreUnavailableError
from millstream.stores.s3 import S3Store, parse_address
from millstream.stores.s3.log_bucket import S3LogBucket

KEYS = [f"space/{number:02d}" for number in range(9)]


class Listed:
    """A client of a server that lists *keys* as they are given: a page has at most *size*, and every other none."""

    def __init__(self, keys: Sequence[str], size: int = 2, *, starts_after: bool = True, tokens: bool = True) -> None:
        self._keys, self._size, self._starts_after, self._tokens = keys, size, starts_after, tokens
        self.requests = 0

    def list_objects_v2(
        self, *, Prefix: str, MaxKeys: int = 1000, StartAfter: str = "", Delimiter: str = "",
        ContinuationToken: str = "", **_: str,
    ) -> dict[str, Any]:  # fmt: skip
        self.requests += 1
        keys = [key for key in self._keys if key.startswith(Prefix)]
        if ContinuationToken:
            first, empty = int(ContinuationToken.removesuffix("e")), ContinuationToken.endswith("e")
        else:
            first = next((n for n, key in enumerate(keys) if not self._starts_after or key > StartAfter), len(keys))
            empty = True
        end = first if empty else first + min(self._size, MaxKeys)
        page: dict[str, Any] = {"IsTruncated": end < len(keys)}
        if Delimiter:
            page["CommonPrefixes"] = [{"Prefix": key.partition("/")[0] + "/"} for key in keys[first:end]]
        elif first < end:
            page["Contents"] = [{"Key": key, "Size": 1} for key in keys[first:end]]
        if page["IsTruncated"] and self._tokens:
            page["NextContinuationToken"] = f"{end}" if empty else f"{end}e"
        return page

    def head_object(self, **_: str) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        raise ClientError({"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, "HeadObject")  # type: ignore[typeddict-item]


def store(client: Listed) -> S3Store:
    return S3Store(parse_address("s3://bucket"), client=client)  # type: ignore[arg-type]


def ids(store: S3Store, after: str = "") -> list[str]:
    return [entry.content_id for entry in store.entries("space", after=after)]


@pytest.mark.parametrize("starts_after", [True, False])
def test_pages_without_keys_do_not_end_a_listing(starts_after: bool) -> None:
    client = Listed(KEYS, starts_after=starts_after)
    assert ids(store(client)) == [f"{number:02d}" for number in range(9)]
    assert ids(store(client), after="04") == ["05", "06", "07", "08"]
    assert store(client).spaces() == ["space"]
    assert store(client).has_space("space") and not store(client).has_space("none")


def test_pages_without_keys_do_not_end_the_listing_of_a_log() -> None:
    bucket = S3LogBucket(parse_address("s3://bucket"), client=Listed(KEYS))  # type: ignore[arg-type]
    assert list(bucket.list("space/")) == KEYS
    assert list(bucket.list("space/", after="space/04", limit=2)) == ["space/05", "space/06"]


def test_a_listing_that_the_server_cuts_off_is_no_whole_one() -> None:
    for look in (ids, S3Store.spaces, lambda cut: cut.has_space("space")):
        with pytest.raises(StoreUnavailableError, match="is incomplete"):
            look(store(Listed(KEYS, tokens=False)))


@pytest.mark.parametrize("keys", [["space/b", "space/a"], ["space/a", "space/a"], ["space/\U00010400", "space/\uffee"]])
def test_keys_in_another_order_than_that_of_their_bytes_are_refused(keys: list[str]) -> None:
    with pytest.raises(StoreError, match="in the order of their UTF-8 bytes"):
        ids(store(Listed(keys)))


def test_a_server_that_lists_empty_pages_for_ever_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.stores.s3.listing.MOST_EMPTY", 5)
    for look in (ids, S3Store.spaces):
        client = Listed([])
        pages = ({"IsTruncated": True, "NextContinuationToken": str(number)} for number in range(100))
        monkeypatch.setattr(client, "list_objects_v2", lambda **_: next(pages))  # noqa: B023
        with pytest.raises(StoreUnavailableError, match="listed none"):
            look(store(client))
        assert next(pages)["NextContinuationToken"] <= "50"


def test_keys_that_were_not_asked_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Listed([])
    monkeypatch.setattr(client, "list_objects_v2", lambda **_: {"Contents": [{"Key": "xpace/secret", "Size": 1}]})
    with pytest.raises(StoreError, match="begin with 'space/' and lists 'xpace/secret'"):
        ids(store(client))
