"""Bytes on their way up: in one call where they are few, in parts where they are many, hashed before S3 has them.

The SHA-256 goes up with the object's metadata, so it has to be known at the start: it was promised, or a stream that
can be read twice is read twice, or the stream is kept in a temporary file meanwhile.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import itertools
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, cast

import msgspec

from millstream.stores.checks import check_promise
from millstream.stores.hashing import copy_stream, hash_stream, read_up_to
from millstream.stores.os_errors import translated
from millstream.stores.protocol import ContentTooLargeError, ItemNotFoundError
from millstream.stores.s3.client import S3Calls
from millstream.stores.s3.errors import ConditionFailedError
from millstream.stores.s3.limits import MAX_PARTS, S3Limits
from millstream.stores.s3.metadata import Metadata, pack

_THREADS = 8


class Upload(msgspec.Struct, frozen=True):
    """The parameters of an upload: its ``key`` and metadata; ``condition`` are further arguments."""

    content_id: str
    key: str
    mimetype: str
    metadata: Metadata
    condition: Mapping[str, str] = {}


class Uploader:
    """Puts streams as objects, in pieces of the sizes that *limits* says."""

    def __init__(self, calls: S3Calls, limits: S3Limits) -> None:
        self._calls, self._limits = calls, limits

    def put(self, upload: Upload, source: BinaryIO, promised: str | None) -> tuple[str, int]:
        """Put all bytes of *source*; returns their SHA-256 and their number.

        Raises ``ChecksumMismatchError`` where they do not hash to *promised*: then nothing was stored.
        """
        start = source.tell() if _rewinds(source) else None
        head = read_up_to(source, self._limits.single + 1)
        if len(head) <= self._limits.single:
            return self.put_at_once(upload, head, promised)[0], len(head)
        if upload.condition:
            self._require_free(upload)
        if promised is not None:
            return self._put_in_parts(upload, _Feed(head, source), promised.lower())
        with self._known(head, source, start) as (known, sha256):
            return self._put_in_parts(upload, _Feed(b"", known), sha256)

    def put_at_once(self, upload: Upload, data: bytes, promised: str | None) -> tuple[str, str]:
        """Put *data* in one call; returns its SHA-256 and the ETag, without quotes, that S3 gave the object.

        Raises ``ChecksumMismatchError`` where it does not hash to *promised*: then nothing was stored.
        """
        digest = hashlib.sha256(data)
        check_promise(upload.content_id, digest.hexdigest(), promised)
        sent = self._calls(
            "put_object", Key=upload.key, ContentType=upload.mimetype,
            Metadata=_with_sha256(upload, digest.hexdigest()), **checked_body(data, digest.digest()),
            **upload.condition,
        )  # fmt: skip
        return digest.hexdigest(), str(sent.get("ETag", "")).strip('"')

    def _put_in_parts(self, upload: Upload, feed: _Feed, sha256: str) -> tuple[str, int]:
        started = self._calls(
            "create_multipart_upload", Key=upload.key, ContentType=upload.mimetype, ChecksumAlgorithm="SHA256",
            Metadata=_with_sha256(upload, sha256),
        )  # fmt: skip
        which = {"Key": upload.key, "UploadId": started["UploadId"]}
        try:
            parts = self._send_parts(which, feed)
            check_promise(upload.content_id, feed.sha256, sha256)
        except BaseException:
            with contextlib.suppress(Exception):  # the error to be told is the one that brought us here
                self._calls("abort_multipart_upload", **which)
            raise
        try:
            self._calls("complete_multipart_upload", MultipartUpload={"Parts": parts}, **which, **upload.condition)
        except ConditionFailedError:
            with contextlib.suppress(Exception):  # as above; its parts would be kept for ever
                self._calls("abort_multipart_upload", **which)
            raise
        return sha256, feed.size

    def _require_free(self, upload: Upload) -> None:
        """Raise :class:`ConditionFailedError` where the key is taken, before much is sent in vain."""
        with contextlib.suppress(ItemNotFoundError):
            self._calls("head_object", Key=upload.key)
            raise ConditionFailedError(f"the key {upload.key!r} of {self._calls.address} is taken")

    def _send_parts(self, which: Mapping[str, str], feed: _Feed) -> list[Mapping[str, Any]]:
        parts: list[Mapping[str, Any]] = []
        waiting: deque[tuple[int, Future[Mapping[str, Any]]]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for number, data in feed.parts(self._limits):
                while waiting and sum(size for size, _ in waiting) + len(data) > self._limits.in_flight:
                    parts.append(waiting.popleft()[1].result())
                waiting.append((len(data), pool.submit(self._send_part, which, number, data)))
            parts += [future.result() for _, future in waiting]
        return parts

    def _send_part(self, which: Mapping[str, str], number: int, data: bytes) -> Mapping[str, Any]:
        checksum = _base64(hashlib.sha256(data).digest())
        sent = self._calls("upload_part", PartNumber=number, Body=data, ChecksumSHA256=checksum, **which)
        return {"PartNumber": number, "ETag": sent.get("ETag", ""), "ChecksumSHA256": checksum}

    @contextlib.contextmanager
    def _known(self, head: bytes, source: BinaryIO, start: int | None) -> Iterator[tuple[BinaryIO, str]]:
        """A stream of all bytes, and their SHA-256. *head* was read already; *source* can go back to *start*."""
        feed = _Feed(head, source)
        if start is not None:
            sha256 = hash_stream(feed.stream).sha256
            source.seek(start)
            yield source, sha256
            return
        with tempfile.TemporaryFile() as kept:
            with translated(f"reading an upload and keeping it in a temporary file in {tempfile.gettempdir()}"):
                sha256 = copy_stream(feed.stream, kept).sha256
                kept.seek(0)
            yield kept, sha256


def checked_body(data: bytes, digest: bytes | None = None) -> dict[str, Any]:
    """Arguments of ``put_object`` by which the server verifies *data*, whose SHA-256 is *digest*.

    A bucket with a default retention refuses a put without a checksum.
    """
    return {"Body": data, "ChecksumSHA256": _base64(digest or hashlib.sha256(data).digest())}


class _Feed(io.RawIOBase):
    """The bytes *head* and then those of *source*, hashed as they are read."""

    def __init__(self, head: bytes, source: BinaryIO) -> None:
        super().__init__()
        self._head, self._source = io.BytesIO(head), source
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def stream(self) -> BinaryIO:
        return cast(BinaryIO, self)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._head.read(size) or self._source.read(size)
        self._digest.update(data)
        self.size += len(data)
        return data

    def parts(self, limits: S3Limits) -> Iterator[tuple[int, bytes]]:
        """The number and the bytes of each part, none of them empty."""
        for number in itertools.count(1):
            data = read_up_to(self.stream, limits.part_size(number))
            if not data:
                return
            if number > MAX_PARTS:
                raise ContentTooLargeError(f"the content has more than {self.size - len(data):,} bytes: divide it")
            yield number, data


def _rewinds(source: BinaryIO) -> bool:
    return isinstance(source, io.IOBase) and source.seekable()


def _with_sha256(upload: Upload, sha256: str) -> dict[str, str]:
    return pack(msgspec.structs.replace(upload.metadata, sha256=sha256))


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")
