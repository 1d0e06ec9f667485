"""Buckets that other programs wrote, as sources."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.core.clock import VirtualClock
from millstream.stores import (
    Checksum,
    ChecksumOrigin,
    ContentIdTooLongError,
    EntryKind,
    ItemChangedError,
    ItemNotFoundError,
    Store,
    StoreError,
    StoreInputError,
    UnreadableError,
    find_entry,
    find_problems,
    open_provider,
)
from millstream.stores.s3 import BucketStore, parse_address
from millstream.testing.s3 import FaultyClient, S3Server
from millstream.testing.sources import SourceConformance
from millstream_peers.rclone import RcloneMissingError, program, rclone
from suite.missing import end_without

S = "space"


def foreign(server: S3Server, items: Mapping[str, bytes] | None = None, **options: Any) -> BucketStore:
    """A source below a prefix that nobody has used, with *items*."""
    address = msgspec.structs.replace(parse_address(server.new_url()), space=S, **options)
    for content_id, data in (items or {}).items():
        put(server, address.prefix + content_id, data)
    return BucketStore(address, client=server.client)


def put(server: S3Server, key: str, data: bytes, **options: Any) -> None:
    server.client.put_object(Bucket=server.address.bucket, Key=key, Body=data, **options)


def prefix_of(store: BucketStore) -> str:
    return parse_address(store.url).prefix


class TestBucketSourceOnMoto(SourceConformance):
    def items(self) -> dict[str, bytes]:
        return {one: data for one, data in super().items().items() if "\n" not in one}  # the mock trips over them

    @pytest.fixture(autouse=True)
    def server(self, moto: S3Server) -> None:
        self.s3 = moto

    def open_source(self, folder: Path, items: Mapping[str, bytes], *, exclude: tuple[str, ...] = ()) -> Store:
        return foreign(self.s3, items, exclude=exclude)


@pytest.mark.smoke
def test_objects_of_a_real_server_are_listed_read_and_versioned(swift: S3Server) -> None:
    items = {
        "new\nline": b"n",
        "space/": b"",
        "space/item": b"grain",
        "space//item": b"two",
        "./a": b"dot",
        "50%": b"p",
    }
    store = foreign(swift, items)
    entries = store.entries(S)
    assert [(entry.content_id, entry.size) for entry in entries] == [
        (content_id, len(items[content_id])) for content_id in sorted(items, key=lambda one: one.encode())
    ]
    for content_id, data in items.items():
        with store.open(S, content_id) as file:
            assert file.read() == data
        entry = find_entry(store, S, content_id)
        assert entry in entries
    before = find_entry(store, S, "50%")
    put(swift, prefix_of(store) + "50%", b"other")
    after = find_entry(store, S, "50%")
    assert before and after and before.version != after.version
    with pytest.raises(ItemNotFoundError):
        store.info(S, "nothing")


def test_objects_in_our_own_layout_are_items_as_they_are(moto: S3Server) -> None:
    url = moto.new_url()
    ours = open_provider(url)
    ours.create_space("photos")
    with open(__file__, "rb") as file:  # noqa: PTH123
        ours.put("photos", "a//b", file, properties={"naïve": "日本"})
    source = open_provider(f"{url}&space=all")
    assert [entry.content_id for entry in source.entries("all")] == ["photos/", "photos/a//b"]
    info = source.info("all", "photos/a//b")
    assert "millstream-sha256" in info.properties
    assert all(checksum.origin == ChecksumOrigin.PROVIDER for checksum in info.checksums), "metadata are not a checksum"


def test_damaged_metadata_of_ours_do_not_keep_an_object_from_being_read(moto: S3Server) -> None:
    store = foreign(moto)
    put(moto, prefix_of(store) + "item", b"grain", Metadata={"millstream-properties-0": "{not json"})
    assert store.info(S, "item").properties == {"millstream-properties-0": "{not json"}


def test_checksums_that_the_provider_recorded_of_the_whole_object_are_offered(moto: S3Server) -> None:
    store = foreign(moto)
    data = b"grain"
    sums = {
        "sha256": hashlib.sha256(data).digest(),
        "sha1": hashlib.sha1(data, usedforsecurity=False).digest(),
        "crc32": zlib.crc32(data).to_bytes(4, "big"),
    }
    for algorithm, digest in sums.items():
        option = {f"Checksum{algorithm.upper()}": base64.b64encode(digest).decode()}
        put(moto, prefix_of(store) + algorithm, data, ChecksumAlgorithm=algorithm.upper(), **option)
        expected = Checksum(algorithm, digest.hex(), ChecksumOrigin.PROVIDER)
        assert expected in store.info(S, algorithm).checksums
    put(moto, prefix_of(store) + "plain", data)
    assert [one.algorithm for one in store.info(S, "plain").checksums if one.algorithm == "md5"] == []


def test_a_sum_of_the_sums_of_parts_is_not_a_checksum(moto: S3Server) -> None:
    store = foreign(moto)
    key, bucket, client = prefix_of(store) + "parts", moto.address.bucket, moto.client
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256")["UploadId"]
    part = client.upload_part(
        Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="SHA256"
    )
    client.complete_multipart_upload(
        Bucket=bucket,
        Key=key,
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}]},
    )
    info = store.info(S, "parts")
    assert info.checksum("sha256") is None
    assert (info.etag or "").endswith("-1")


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_archived_objects_are_named_and_cannot_be_read(moto: S3Server, storage_class: str) -> None:
    store = foreign(moto, {"here": b"grain"})
    put(moto, prefix_of(store) + "archived", b"cold", StorageClass=storage_class)
    assert {entry.content_id: entry.kind for entry in store.entries(S)} == {
        "archived": EntryKind.ARCHIVED,
        "here": EntryKind.FILE,
    }
    [problem] = find_problems(store, S)
    assert (problem.content_id, problem.kind) == ("archived", EntryKind.ARCHIVED)
    assert "restore it" in problem.reason
    assert store.info(S, "archived").size == 4
    with pytest.raises(UnreadableError):
        store.open(S, "archived")


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(moto: S3Server) -> None:
    store = foreign(moto, {"item": b"old" * 2_000_000})
    broken = [True]

    def cut(operation: str, moment: str) -> None:
        """Replace the object when its bytes are asked for the second time, after the first connection broke."""
        if operation == "get_object" and moment == "before" and not broken[0]:
            put(moto, prefix_of(store) + "item", b"new" * 2_000_000)

    client = FaultyClient(moto.client, cut)
    source = BucketStore(parse_address(store.url), client=client, clock=VirtualClock())  # type: ignore[arg-type]
    with source.open(S, "item") as file:
        assert file.read(3) == b"old"
        broken[0] = False
        raw: Any = file.raw  # type: ignore[attr-defined]
        raw._body.close()
        with pytest.raises((ItemChangedError, ValueError)) as caught:
            file.read()
    assert caught.type is ItemChangedError


def test_a_missing_bucket_does_not_make_its_objects_look_deleted(moto: S3Server) -> None:
    address = msgspec.structs.replace(parse_address(moto.new_url()), space=S, bucket="no-such-bucket")
    store = BucketStore(address, client=moto.client)
    for ask in (lambda: store.entries(S), lambda: store.info(S, "a"), lambda: store.open(S, "a")):
        with pytest.raises(StoreError, match="NoSuchBucket") as caught:
            ask()
        assert not isinstance(caught.value, ItemNotFoundError)


def test_a_key_longer_than_s3_keeps_is_refused_for_good(moto: S3Server) -> None:
    store = open_provider(moto.new_url())
    store.create_space(S)
    with (
        pytest.raises(ContentIdTooLongError, match="the limit of S3 is 1,024") as caught,
        Path(__file__).open("rb") as file,
    ):
        store.put(S, "x" * 1020, file)
    assert not caught.value.transient
    with pytest.raises(ContentIdTooLongError):
        store.info(S, "x" * 1020)


def test_a_bucket_that_rclone_wrote_is_a_source(moto: S3Server, tmp_path: Path) -> None:
    try:
        program()
    except RcloneMissingError as error:
        end_without(error)
    items = {".hidden": b"h", "50%": b"p", "a b/naïve": b"n" * 70_000}
    for name, data in items.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    store = foreign(moto)
    remote = {
        "RCLONE_CONFIG_MOTO_TYPE": "s3",
        "RCLONE_CONFIG_MOTO_PROVIDER": "Other",
        "RCLONE_CONFIG_MOTO_ENDPOINT": moto.address.endpoint or "",
        "RCLONE_CONFIG_MOTO_ACCESS_KEY_ID": "rclone",
        "RCLONE_CONFIG_MOTO_SECRET_ACCESS_KEY": "rclone-secret",
    }
    copied = rclone("copy", str(tmp_path), f"moto:{moto.address.bucket}/{prefix_of(store)}", remotes=remote)
    assert copied.returncode == 0, copied.stderr
    assert [(entry.content_id, entry.size) for entry in store.entries(S)] == [(n, len(d)) for n, d in items.items()]
    assert store.info(S, "50%").properties["mtime"] == "1700000000.123456789", "as a folder's items have it"
    with store.open(S, "a b/naïve") as file:
        assert file.read() == items["a b/naïve"]


@pytest.mark.parametrize("query", ["exclude=*.tmp", "space=", "space=a&space=b", "space=a%2Fb", "space=a&exclude="])
def test_options_that_cannot_be_are_refused(query: str) -> None:
    with pytest.raises(StoreInputError):
        open_provider(f"s3://bucket?{query}")
