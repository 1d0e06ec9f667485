"""What servers answer that are not quite S3, or were asked twice."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import itertools
import os
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError, ResponseStreamingError
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.clock import VirtualClock
from millstream.log.errors import StorageError, StorageUnavailableError
from millstream.stores import (
    AlreadyExistsError,
    DamagedRecordError,
    ItemNotFoundError,
    SpaceAccess,
    StoreError,
    StoreUnavailableError,
)
from millstream.stores.s3 import BucketStore, S3Limits, S3Store, parse_address
from millstream.stores.s3.client import parsed_time
from millstream.stores.s3.copying import Copier
from millstream.stores.s3.log_bucket import S3LogBucket

ADDRESS = parse_address("s3://bucket")
TINY = S3Limits(single=4, part=4, largest_part=4, single_copy=4, copy_part=4)
DATA = b"0123456789"


class Answers:
    """A client that gives each operation its answer, which may be a function of the arguments or an error.

    Of an iterator, each call takes the next answer. ``asked`` are the calls.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.asked.append((operation, arguments))
            answer = self._answers[operation]
            if callable(answer):
                answer = answer(arguments["Key"])
            elif hasattr(answer, "__next__"):
                answer = next(answer)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def count(self, operation: str) -> int:
        return [asked for asked, _ in self.asked].count(operation)


class Breaking(io.BytesIO):
    """A body whose connection breaks where it ends."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data:
            raise ResponseStreamingError(error="cut")
        return data


def error(code: str, status: int) -> ClientError:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Operation")  # type: ignore[arg-type]


def head(size: int = len(DATA), **metadata: str) -> dict[str, Any]:
    return {"ContentLength": size, "ETag": '"tag"', "Metadata": metadata}


def whole(body: io.BytesIO | None = None) -> dict[str, Any]:
    return {"Body": body or io.BytesIO(DATA), "ETag": '"tag"', "ResponseMetadata": {"HTTPStatusCode": 200}}


def store(client: Answers, limits: S3Limits | None = None) -> S3Store:
    return S3Store(ADDRESS, client=client, clock=VirtualClock(), limits=limits, new_id=lambda: "ours")  # type: ignore[arg-type]


def log_bucket(client: Answers) -> S3LogBucket:
    return S3LogBucket(ADDRESS, client=client, clock=VirtualClock())  # type: ignore[arg-type]


def test_a_server_that_ignores_ranges_gives_the_bytes_that_were_asked_for_or_an_error() -> None:
    client = Answers(get_object=lambda _: whole())
    with store(client).open("space", "item", start=0, length=3) as file:
        assert file.read() == b"012"
    assert log_bucket(client).get("object", 0, 3) == b"012"
    with pytest.raises(StoreError, match="ignores ranges") as refused:
        store(client).open("space", "item", start=4)
    assert not refused.value.transient
    with pytest.raises(StorageError, match="ignores ranges"):
        log_bucket(client).get("object", 4)


@pytest.mark.parametrize("found", [None, "bytes 0-9/10"])
def test_a_read_whose_rest_does_not_come_has_no_bytes_twice(found: str | None) -> None:
    client = Answers(get_object=iter([whole(Breaking(DATA[:4])), whole() | {"ContentRange": found}]))
    with store(client).open("space", "item") as file, pytest.raises(StoreError, match="ignores ranges"):
        file.read()
    assert client.asked[1][1]["Range"] == "bytes=4-"


def test_a_read_goes_on_with_the_rest() -> None:
    rest = whole(io.BytesIO(DATA[4:])) | {"ContentRange": "bytes 4-9/10"}
    client = Answers(get_object=iter([whole(Breaking(DATA[:4])), rest]))
    with store(client).open("space", "item") as file:
        assert file.read() == DATA


def test_the_largest_objects_have_no_more_parts_than_s3_takes() -> None:
    assert sum(S3Limits().part_size(number) for number in range(1, 10_001)) > 5 * 2**40
    copier = Copier(None, S3Limits())  # type: ignore[arg-type]
    for size in (5 * 2**40, 50 * 10**12):
        assert sum(1 for _ in copier._ranges(size)) <= 10_000


def test_content_of_more_parts_than_s3_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.stores.s3.uploads.MAX_PARTS", 2)
    client = Answers(
        head_object=head(), create_multipart_upload={"UploadId": "u"}, upload_part={"ETag": "tag"},
        abort_multipart_upload={},
    )  # fmt: skip
    with pytest.raises(StoreError, match="more than 8 bytes") as refused:
        store(client, TINY).put("space", "item", io.BytesIO(DATA))
    assert refused.value.permanent and client.count("abort_multipart_upload") == 1


def test_an_item_that_exists_is_not_uploaded_to_be_refused() -> None:
    client = Answers(head_object=head())
    with pytest.raises(AlreadyExistsError):
        store(client, TINY).put("space", "item", io.BytesIO(DATA), create_only=True)


def test_the_parts_of_an_upload_that_is_refused_at_its_end_are_removed() -> None:
    items = iter([error("404", 404), head()])
    client = Answers(
        head_object=lambda key: next(items) if key.endswith("item") else head(0),
        create_multipart_upload={"UploadId": "u"}, upload_part={"ETag": "tag"},
        complete_multipart_upload=error("PreconditionFailed", 412), abort_multipart_upload={},
    )  # fmt: skip
    with pytest.raises(AlreadyExistsError):
        store(client, TINY).put("space", "item", io.BytesIO(DATA), create_only=True)
    assert ("abort_multipart_upload", {"Bucket": "bucket", "Key": "space/item", "UploadId": "u"}) in client.asked


@pytest.mark.parametrize("done", [True, False])
def test_a_copy_in_parts_whose_reply_was_lost_is_known_again(done: bool) -> None:
    copied = {"millstream-put": "ours"} if done else {"millstream-put": "of the one before"}
    client = Answers(
        head_object=lambda key: head(**(copied if key.endswith("copy") else {})),
        create_multipart_upload={"UploadId": "u"}, upload_part_copy={"CopyPartResult": {"ETag": "tag"}},
        complete_multipart_upload=iter([ReadTimeoutError(endpoint_url="http://server"), error("NoSuchUpload", 404)]),
    )  # fmt: skip
    if done:
        assert store(client, TINY).copy("space", "item", "space", "copy").size == len(DATA)
    else:
        with pytest.raises(StoreUnavailableError, match="aborted by another process"):
            store(client, TINY).copy("space", "item", "space", "copy")


@pytest.mark.parametrize("size", [4, 10])
def test_a_copy_that_takes_longer_than_a_reply_may_is_made_in_parts(size: int) -> None:
    client = Answers(
        head_object=lambda key: head(size, **({"millstream-put": "ours"} if key.endswith("copy") else {})),
        copy_object=ReadTimeoutError(endpoint_url="http://server"), create_multipart_upload={"UploadId": "u"},
        upload_part_copy={"CopyPartResult": {"ETag": "tag"}}, complete_multipart_upload={},
    )  # fmt: skip
    copying = store(client, msgspec.structs.replace(TINY, single_copy=100))
    if size > TINY.copy_part:
        assert copying.copy("space", "item", "space", "copy").size == size
        assert (client.count("copy_object"), client.count("upload_part_copy")) == (1, 3)
    else:
        with pytest.raises(StoreUnavailableError):
            copying.copy("space", "item", "space", "copy")


def test_a_copy_that_a_busy_server_refuses_is_made_in_one_call_later() -> None:
    client = Answers(
        head_object=lambda key: head(**({"millstream-put": "ours"} if key.endswith("copy") else {})),
        copy_object=iter([error("SlowDown", 503), {}]),
    )  # fmt: skip
    copying = store(client, msgspec.structs.replace(TINY, single_copy=100))
    assert copying.copy("space", "item", "space", "copy").size == len(DATA)
    assert client.count("copy_object") == 2


def test_keys_that_are_not_deleted_for_a_moment_are_deleted_again() -> None:
    busy = {"Key": "a", "Code": "SlowDown", "Message": "wait"}
    client = Answers(delete_objects=iter([{"Errors": [busy]}, {}]))
    log_bucket(client).delete(["a", "b"])
    assert client.count("delete_objects") == 2
    client = Answers(delete_objects={"Errors": [busy]})
    with pytest.raises(StorageUnavailableError, match="SlowDown"):
        log_bucket(client).delete(["a", "b"])
    client = Answers(delete_objects={"Errors": [busy, {"Key": "b", "Code": "AccessDenied", "Message": "no"}]})
    with pytest.raises(StorageError, match=r"deleting 2 of 3 objects .* 'b': AccessDenied"):
        log_bucket(client).delete(["a", "b", "c"])
    assert client.count("delete_objects") == 1


def test_an_object_of_another_program_keeps_the_checksum_that_s3_recorded() -> None:
    recorded = {"ChecksumSHA256": base64.b64encode(hashlib.sha256(DATA).digest()).decode()}
    objects = itertools.chain([head() | recorded], itertools.repeat(head(**{"millstream-put": "ours"}) | recorded))
    client = Answers(head_object=lambda key: next(objects) if key.endswith("item") else head(0), copy_object={})
    info = store(client).set_properties("space", "item", {})
    assert info.checksum() == hashlib.sha256(DATA).hexdigest()


def test_an_item_whose_properties_are_damaged_can_be_deleted() -> None:
    client = Answers(head_object=head(**{"millstream-properties-0": "{"}), delete_object={})
    with pytest.raises(DamagedRecordError):
        store(client).info("space", "item")
    store(client).delete("space", "item")
    assert client.count("delete_object") == 1
    client = Answers(head_object=lambda key: head(0) if key == "space/" else error("404", 404))
    with pytest.raises(ItemNotFoundError):
        store(client).delete("space", "item")


def test_the_records_of_spaces_are_sent_with_a_checksum() -> None:
    client = Answers(head_object=error("404", 404), put_object={}, list_objects_v2={"Contents": [{"Key": "space/"}]})
    store(client).create_space("space")
    store(client).set_space_acls("space", {"user": SpaceAccess.READ})
    puts = [arguments for asked, arguments in client.asked if asked == "put_object"]
    sums = [base64.b64encode(hashlib.sha256(one["Body"]).digest()).decode() for one in puts]
    assert [one["ChecksumSHA256"] for one in puts] == sums and len(puts) == 2


def test_a_server_that_states_no_length_is_an_error_of_the_object() -> None:
    client = Answers(head_object={"ETag": '"tag"'})
    source = BucketStore(msgspec.structs.replace(ADDRESS, space="space"), client=client)  # type: ignore[arg-type]
    for info in (store(client).info, source.info):
        with pytest.raises(StoreError, match=r"states no length of '.*item'"):
            info("space", "item")
    assert [type(one) for one in store(client).bulk.infos("space", ["a", "b"])] == [StoreError] * 2
    with pytest.raises(StorageError, match="states no length"):
        log_bucket(client).size("object")


def test_a_full_temporary_folder_fails_an_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(StoreError, match=r"temporary file .*; free space on the disk"):
        store(Answers(head_object=head()), TINY).put("space", "item", Pipe(DATA))


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.timezones()))
def test_times_are_what_botocore_reads(time: datetime) -> None:
    """As listings and headers have them, and as only botocore reads them."""
    utc = time.astimezone(UTC)
    header = format_datetime(utc, usegmt=True)
    for text in (utc.isoformat(), utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"), header):
        assert parsed_time(text) == parse_timestamp(text)
    assert parsed_time(header).tzinfo is not None
    for other in (utc.isoformat().removesuffix("+00:00"), "1422172800", 1422172800, header.removesuffix(" GMT")):
        assert parsed_time(other) == parse_timestamp(other)


def test_a_time_that_is_none_is_a_value_error() -> None:
    for value in ("", "yesterday", "2026-13-01T00:00:00Z"):
        with pytest.raises(ValueError, match="timestamp"):
            parsed_time(value)


class Endless(io.BytesIO):
    """A body that is longer than the server said."""

    def __init__(self) -> None:
        super().__init__(b"x" * 4 * 1024 * 1024)
        self.given = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.given += len(data)
        return data


def test_no_more_of_an_object_is_read_than_was_asked_for() -> None:
    bodies = [Endless(), Endless()]
    stored = store(Answers(get_object=iter([head() | whole(body) for body in bodies])))
    with pytest.raises(StoreError, match="exceeds 1,048,576 bytes"):
        stored.reading("space", "item")
    with pytest.raises(StoreError, match="exceeds 20 bytes"):
        stored.fetch("space", "item", 20)
    logged = Endless()
    assert log_bucket(Answers(get_object=lambda _: whole(logged))).get("object", 0, 3) == b"xxx"
    assert max(body.given for body in (*bodies, logged)) <= 2 * 1024 * 1024
    with pytest.raises(StorageUnavailableError):
        log_bucket(Answers(get_object=lambda _: whole(Breaking(DATA[:2])))).get("object", 0, 3)
