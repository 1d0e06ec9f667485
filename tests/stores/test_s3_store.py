"""What is special about a store on S3, on a real server."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.retry import RetryPolicy
from millstream.stores import (
    AlreadyExistsError,
    Checksum,
    ChecksumMismatchError,
    ChecksumOrigin,
    DamagedRecordError,
    ItemNotFoundError,
    SpaceAccess,
    StoreError,
    StoreInputError,
    StoreUnavailableError,
    open_provider,
)
from millstream.stores.s3 import S3Limits, S3Store, parse_address
from millstream.testing.s3 import FaultyClient, S3Server
from millstream.testing.swift import CREDENTIALS

MIB = 1024 * 1024
SMALL = S3Limits(single=MIB, part=5 * MIB, in_flight=12 * MIB, single_copy=6 * MIB, copy_part=5 * MIB)
DATA = bytes(range(256)) * (44 * 1024)  # 11 MiB
SHA256 = hashlib.sha256(DATA).hexdigest()


class Pipe(io.RawIOBase):
    """A stream that gives what it likes, and cannot go back."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(min(size, 700_001) if size >= 0 else size)


def pipe(data: bytes) -> BinaryIO:
    return cast(BinaryIO, Pipe(data))


def lose(operation: str, when: str, times: int, error: Callable[[], Exception]) -> Callable[[str, str], None]:
    """A fault: the first *times* that *operation* is called, *error* comes *when* it is (or is not yet) done."""
    lock, left = threading.Lock(), [times]

    def fault(called: str, moment: str) -> None:
        if (called, moment) == (operation, when):
            with lock:
                left[0] -= 1
                if left[0] >= 0:
                    raise error()

    return fault


def timeout() -> Exception:
    return ReadTimeoutError(endpoint_url="http://server")


def faulty(swift: S3Server, fault: Callable[[str, str], None], **options: Any) -> tuple[S3Store, FaultyClient]:
    client = FaultyClient(swift.client, fault)
    store = swift.new_store(client=client, clock=VirtualClock(), **options)
    store.create_space("space")
    return store, client


@pytest.fixture
def store(swift: S3Server) -> S3Store:
    store = swift.new_store(limits=SMALL)
    store.create_space("space")
    return store


def read(store: S3Store, content_id: str = "item") -> bytes:
    with store.open("space", content_id) as source:
        return source.read()


@pytest.mark.smoke
@pytest.mark.parametrize("source", [io.BytesIO, pipe], ids=["seekable", "pipe"])
@pytest.mark.parametrize("promised", [None, SHA256.upper()], ids=["unknown", "promised"])
def test_a_large_stream_goes_up_in_parts(
    store: S3Store, source: Callable[[bytes], BinaryIO], promised: str | None
) -> None:
    info = store.put("space", "item", source(DATA), mimetype="text/plain", properties={"a": "ä"}, sha256=promised)
    assert (info.etag or "").endswith("-3")
    assert info.checksums == (Checksum("sha256", SHA256, ChecksumOrigin.USER),)  # neither the ETag nor a sum of sums
    assert (info.size, info.mimetype, info.properties) == (len(DATA), "text/plain", {"a": "ä"})
    assert store.info("space", "item") == info
    assert read(store) == DATA


def test_a_large_stream_starts_where_it_stands(store: S3Store) -> None:
    source = io.BytesIO(b"skipped" + DATA)
    source.seek(7)
    assert store.put("space", "item", source).checksum() == SHA256
    assert read(store) == DATA


def test_memory_is_bounded_by_the_parts_in_flight(swift: S3Server) -> None:
    sent: list[int] = []
    busy = threading.Semaphore(2)

    def fault(operation: str, moment: str) -> None:
        if operation == "upload_part" and moment == "before":
            assert busy.acquire(blocking=False), "a third part of 5 MiB is more than 12 MiB"
            sent.append(1)
        elif operation == "upload_part":
            busy.release()

    store, _ = faulty(swift, fault, limits=SMALL)
    assert store.put("space", "item", pipe(DATA * 3), sha256=hashlib.sha256(DATA * 3).hexdigest()).size == 3 * len(DATA)
    assert len(sent) == 7


@pytest.mark.parametrize("promised", ["0" * 64, SHA256])
def test_a_large_stream_that_breaks_a_promise_leaves_nothing(swift: S3Server, store: S3Store, promised: str) -> None:
    store.put("space", "item", io.BytesIO(b"before"))
    with pytest.raises(ChecksumMismatchError):
        store.put("space", "item", pipe(DATA + (b"!" if promised == SHA256 else b"")), sha256=promised)
    assert read(store) == b"before"
    prefix = parse_address(store.url).prefix
    assert "Uploads" not in swift.client.list_multipart_uploads(Bucket=swift.address.bucket, Prefix=prefix)


def test_create_only_holds_for_large_streams(store: S3Store) -> None:
    store.put("space", "item", io.BytesIO(DATA), create_only=True)
    with pytest.raises(AlreadyExistsError):
        store.put("space", "item", io.BytesIO(b"!" + DATA), create_only=True)
    assert read(store) == DATA


def test_properties_of_an_object_in_parts_are_replaced_by_the_server(store: S3Store) -> None:
    store.put("space", "item", io.BytesIO(DATA), mimetype="text/plain", properties={"a": "1"})
    changed = store.set_properties("space", "item", {"b": "2"})
    assert (changed.mimetype, changed.properties, changed.checksum()) == ("text/plain", {"b": "2"}, SHA256)
    assert read(store) == DATA
    copied = store.copy("space", "item", "space", "copy")
    store.delete("space", "item")
    assert (copied.size, copied.checksum(), copied.properties) == (len(DATA), SHA256, {"b": "2"})
    assert read(store, "copy") == DATA


@pytest.mark.smoke
@pytest.mark.parametrize("operation", ["put_object", "complete_multipart_upload"])
def test_a_creation_whose_reply_was_lost_is_known_again(swift: S3Server, operation: str) -> None:
    store, client = faulty(swift, lambda *_: None, limits=SMALL)
    client._fault = lose(operation, "after", 1, timeout)
    data = DATA if operation.startswith("complete") else b"grain"
    assert store.put("space", "item", io.BytesIO(data), create_only=True).size == len(data)
    assert read(store) == data
    with pytest.raises(AlreadyExistsError):
        store.put("space", "item", io.BytesIO(data), create_only=True)


@pytest.mark.parametrize("operation", ["put_object", "upload_part", "head_object", "list_objects_v2", "get_object"])
def test_a_server_that_does_not_answer_is_asked_again_and_then_is_unavailable(swift: S3Server, operation: str) -> None:
    store, client = faulty(swift, lambda *_: None, limits=SMALL, retries=RetryPolicy(attempts=3))

    def use() -> None:
        store.put("space", "item", io.BytesIO(DATA if operation == "upload_part" else b"grain"))
        assert len(store.entries("space")) == 1
        read(store)

    client._fault = lose(operation, "before", 2, timeout)
    use()
    client._fault = lose(operation, "before", 99, lambda: ConnectionClosedError(endpoint_url="http://server"))
    with pytest.raises(StoreUnavailableError, match="try again"):
        use()


def test_a_connection_that_breaks_is_taken_up_where_it_broke(swift: S3Server) -> None:
    store, client = faulty(swift, lambda *_: None)
    store.put("space", "item", io.BytesIO(DATA))
    with store.open("space", "item", start=5) as source:
        first = source.read(3 * MIB)
        source.raw._body.close()  # type: ignore[union-attr] - the line goes dead
        source.raw._body._raw_stream = _Dead()  # type: ignore[union-attr]
        assert first + source.read() == DATA[5:]
    assert client.calls["get_object"] == 2


@pytest.mark.smoke
def test_a_read_never_mixes_two_versions(swift: S3Server) -> None:
    store, _ = faulty(swift, lambda *_: None, retries=RetryPolicy(attempts=2))
    store.put("space", "item", io.BytesIO(DATA))
    with store.open("space", "item") as source:
        source.read(2 * MIB)
        store.put("space", "item", io.BytesIO(DATA[::-1]))
        source.raw._body._raw_stream = _Dead()  # type: ignore[union-attr]
        with pytest.raises(StoreUnavailableError, match="replaced while it was read"):
            source.read()


class _Dead:
    def read(self, *_: object) -> bytes:
        raise OSError("connection reset")

    def close(self) -> None:
        pass


def test_objects_of_others_are_items_too(swift: S3Server, store: S3Store) -> None:
    prefix = parse_address(store.url).prefix
    key = f"{prefix}foreign/a.txt"
    swift.client.put_object(
        Bucket=swift.address.bucket, Key=key, Body=b"grain", ContentEncoding="gzip", Metadata={"mtime": "1.5"}
    )
    assert store.spaces() == ["foreign", "space"]
    assert store.has_space("foreign")
    info = store.info("foreign", "a.txt")
    assert (info.checksums, info.properties) == ((), {"mtime": "1.5"})
    assert store.set_properties("foreign", "a.txt", {"b": "2"}).checksums == ()
    assert swift.client.head_object(Bucket=swift.address.bucket, Key=key)["ContentEncoding"] == "gzip"


def test_what_the_server_shows_after_a_put_must_be_what_was_sent(swift: S3Server) -> None:
    store, client = faulty(swift, lambda *_: None)
    real_head = swift.client.head_object

    def shrunk(**arguments: Any) -> Any:
        return {**real_head(**arguments), "ContentLength": 4}

    client.__dict__["head_object"] = shrunk
    with pytest.raises(StoreError, match="differs from what was sent"):
        store.put("space", "item", io.BytesIO(b"grain"))


@pytest.mark.smoke
def test_provider_sums_count_only_where_they_are_of_the_whole_object(moto: S3Server) -> None:
    store = moto.new_store(limits=SMALL)
    store.create_space("space")
    info = store.put("space", "item", io.BytesIO(DATA))
    assert info.checksums == (Checksum("sha256", SHA256, ChecksumOrigin.USER),)


def test_a_damaged_access_list_says_how_it_is_replaced_and_is(moto: S3Server) -> None:
    store = moto.new_store()
    store.create_space("space")
    key = f"{parse_address(store.url).prefix}space/"
    moto.client.put_object(Bucket=moto.address.bucket, Key=key, Body=b"damaged")
    with pytest.raises(DamagedRecordError, match=r"contains no access list .*acl STORE SPACE --replace --set"):
        store.space_acls("space")
    store.set_space_acls("space", {"ann": SpaceAccess.READ})
    assert store.space_acls("space") == {"ann": SpaceAccess.READ}


def test_a_missing_bucket_is_no_missing_item(swift: S3Server) -> None:
    address = f"s3://nowhere?endpoint={swift.address.endpoint}&credentials={CREDENTIALS}"
    store = open_provider(address)
    for ask in (store.spaces, lambda: store.info("space", "item"), lambda: store.put("space", "a", io.BytesIO(b""))):
        with pytest.raises(StoreError, match="create the bucket") as caught:
            ask()
        assert not isinstance(caught.value, ItemNotFoundError)


def test_a_wrong_secret_is_refused_and_not_shown(swift: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG_ACCESS_KEY_ID", "test:tester")
    monkeypatch.setenv("WRONG_SECRET_ACCESS_KEY", "hunter2")
    store = open_provider(f"s3://millstream?endpoint={swift.address.endpoint}&credentials=WRONG")
    with pytest.raises(StoreError, match=r"credentials|secret") as caught:
        store.spaces()
    assert "hunter2" not in str(caught.value)
    assert not caught.value.transient


def test_a_key_longer_than_s3_keeps_is_refused(store: S3Store) -> None:
    with pytest.raises(StoreInputError, match="shorten the id"):
        store.put("space", "x" * 1024, io.BytesIO(b""))
    assert store.entries("space", after="x" * 1024) == []


def test_a_space_is_listed_page_by_page(swift: S3Server) -> None:
    store, client = faulty(swift, lambda *_: None)
    for number in range(5):
        store.put("space", str(number), io.BytesIO(b""))
    client.__dict__["list_objects_v2"] = lambda **arguments: swift.client.list_objects_v2(
        **{**arguments, "MaxKeys": min(2, arguments["MaxKeys"])}
    )
    assert [entry.content_id for entry in store.entries("space")] == ["0", "1", "2", "3", "4"]


def test_the_command_line_uses_a_bucket_as_any_store(
    swift: S3Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = swift.new_url().replace("s3://millstream/", "s3://made-on-demand/")
    (tmp_path / "a.txt").write_bytes(b"grain")
    assert run(["store", "put", url, "space", str(tmp_path / "a.txt"), "--create", "--property", "creator=mill"]) == 0
    assert run(["store", "props", url, "space", "a.txt", "--set", "b=2"]) == 0
    assert "property creator: mill" in capfd.readouterr().out
    assert run(["store", "get", url, "space", "a.txt", str(tmp_path / "got")]) == 0
    assert (tmp_path / "got").read_bytes() == b"grain"
    assert run(["store", "get", url, "space", "b.txt"]) == 3
    assert run(["store", "delete", url, "space", "a.txt"]) == 0
    assert run(["store", "delete", url, "space"]) == 0
    with contextlib.suppress(StoreError):
        assert open_provider(url).spaces() == []
