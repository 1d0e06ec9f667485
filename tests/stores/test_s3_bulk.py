"""Many small items in a bucket at once, and how few requests they take."""

from __future__ import annotations

import hashlib
import io
from collections import Counter

import pytest

from millstream.stores import AlreadyExistsError, ItemInfo, ItemNotFoundError, SpaceNotFoundError, StoreError
from millstream.stores.bulk import SMALL, FetchedItem, NewItem, Reading, listed_infos
from millstream.stores.s3 import S3Store, parse_address
from millstream.testing.s3 import FaultyClient, S3Server

S = "space"


def items(count: int) -> list[NewItem]:
    bodies = {f"folder/{number}": b"item %d" % number * number for number in range(count)}
    return [NewItem(name, body, hashlib.sha256(body).hexdigest(), "text/plain") for name, body in bodies.items()]


class Requests(Counter[str]):
    """A store in a bucket, and the requests that it makes."""

    def open(self, server: S3Server) -> S3Store:
        client = FaultyClient(
            server.client, lambda operation, when: self.update([operation] if when == "before" else [])
        )
        store = S3Store(parse_address(server.new_url()), client=client)  # type: ignore[arg-type]
        store.create_space(S)
        store.put(S, "old", _stream(b"old"))
        self.clear()
        return store


def _stream(data: bytes) -> io.BytesIO:
    return io.BytesIO(data)


def test_new_items_take_one_request_each_and_are_what_was_sent(moto: S3Server) -> None:
    requests = Requests()
    store, new = requests.open(moto), items(20)
    stored = store.bulk.put(S, new)
    assert [one.checksum() if isinstance(one, ItemInfo) else one for one in stored] == [one.sha256 for one in new]
    assert requests == {"put_object": 20}
    assert store.bulk.read(S, [one.content_id for one in new]) == [one.data for one in new]
    assert store.info(S, "folder/3").mimetype == "text/plain"


def test_an_item_whose_etag_is_no_hash_of_what_was_sent_is_looked_at(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests()
    store, (new,) = requests.open(moto), items(1)
    monkeypatch.setattr("millstream.stores.s3.store.hashlib.md5", hashlib.sha1)
    (stored,) = store.bulk.put(S, [new])
    assert isinstance(stored, ItemInfo) and stored.checksum() == new.sha256
    assert requests == {"put_object": 1, "head_object": 1}


def test_what_is_there_is_never_replaced(moto: S3Server) -> None:
    store, new = Requests().open(moto), items(3)
    store.put(S, "folder/1", _stream(b"there"))
    stored = store.bulk.put(S, new)
    assert [type(one) for one in stored] == [ItemInfo, AlreadyExistsError, ItemInfo]
    assert store.bulk.read(S, ["folder/1"]) == [b"there"]


def test_a_listing_says_of_many_that_they_are_not_there(moto: S3Server) -> None:
    requests = Requests()
    store = requests.open(moto)
    names = ["new/1", "old", "älter", "0"]
    found = listed_infos(store.bulk, S, names)
    assert [type(one) for one in found] == [ItemNotFoundError, ItemInfo, ItemNotFoundError, ItemNotFoundError]
    assert (requests["list_objects_v2"], requests["head_object"]) == (1, 1)


def test_items_of_a_space_that_is_not_there_are_errors_of_the_space(moto: S3Server) -> None:
    store = Requests().open(moto)
    assert [type(one) for one in listed_infos(store.bulk, "other", ["a", "b"])] == [SpaceNotFoundError] * 2


def test_large_and_missing_items_are_errors_of_their_own(moto: S3Server) -> None:
    store = Requests().open(moto)
    store.put(S, "large", _stream(bytes(SMALL + 1)))
    large, missing, old = store.bulk.hashes(S, ["large", "missing", "old"])
    assert isinstance(large, StoreError) and isinstance(missing, ItemNotFoundError)
    assert not isinstance(old, StoreError) and old.sha256 == hashlib.sha256(b"old").hexdigest()


def test_metadata_and_bytes_of_an_item_are_read_in_one_request(moto: S3Server) -> None:
    requests = Requests()
    store, new = requests.open(moto), items(20)
    store.bulk.put(S, new)
    store.put(S, "large", _stream(bytes(SMALL + 1)))
    requests.clear()
    names = [*(one.content_id for one in new), "large"]
    *found, large = store.bulk.readings(S, names)
    assert requests == {"get_object": 21}
    assert [one.sha256 if isinstance(one, Reading) else one for one in found] == [one.sha256 for one in new]
    first = store.info(S, new[0].content_id)
    assert found[0] == Reading(
        first.checksum(), new[0].sha256, first.size, first.modified, 1, first.mimetype, first.properties
    )
    assert isinstance(large, StoreError)
    sizes = store.bulk.readings(S, names[:2], [new[0].sha256, new[0].sha256])
    assert sizes[0] == len(new[0].data) and isinstance(sizes[1], Reading)
    missing, nowhere = store.bulk.readings(S, ["missing"]) + store.bulk.readings("other", ["missing"])
    assert isinstance(missing, ItemNotFoundError) and isinstance(nowhere, SpaceNotFoundError)


def test_metadata_and_content_of_items_are_fetched_in_one_request(moto: S3Server) -> None:
    requests = Requests()
    store, new = requests.open(moto), items(5)
    store.bulk.put(S, new)
    requests.clear()
    sizes = {one.content_id: len(one.data) for one in new} | {"old": 2, "missing": 9}
    *found, larger, missing = store.bulk.fetch(S, sizes)
    assert requests == {"get_object": len(sizes), "head_object": 1}, "and whether the space of the missing one is there"
    assert [one.data if isinstance(one, FetchedItem) else one for one in found] == [one.data for one in new]
    assert [one.info if isinstance(one, FetchedItem) else one for one in found] == store.bulk.infos(S, list(sizes)[:5])
    assert isinstance(larger, StoreError) and "exceeds 2 bytes" in str(larger)
    assert isinstance(missing, ItemNotFoundError)


def test_bytes_that_are_not_those_the_provider_recorded_are_read_all_the_same(moto: S3Server) -> None:
    store = Requests().open(moto)
    store.put(S, "sour", _stream(b"good"))
    key = {"Bucket": store._address.bucket, "Key": f"{store._address.prefix}{S}/sour"}
    metadata = moto.client.head_object(**key)["Metadata"]
    moto.client.put_object(**key, Body=b"bad", Metadata=metadata)
    (found,) = store.bulk.readings(S, ["sour"], [hashlib.sha256(b"good").hexdigest()])
    assert isinstance(found, Reading)
    assert (found.provider, found.sha256) == tuple(hashlib.sha256(data).hexdigest() for data in (b"good", b"bad"))
