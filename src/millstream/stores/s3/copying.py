"""Copies that S3 makes itself, of bytes that never come to us; also how metadata are replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from millstream.stores.s3.client import S3Calls
from millstream.stores.s3.errors import NoReplyError
from millstream.stores.s3.limits import MAX_PARTS, S3Limits
from millstream.stores.s3.metadata import Metadata, pack
from millstream.stores.s3.objects import S3Object


class Copier:
    """Copies objects of one bucket. The source must still be the version that the caller saw, or nothing happens."""

    def __init__(self, calls: S3Calls, limits: S3Limits) -> None:
        self._calls, self._limits = calls, limits

    def copy(self, key: str, seen: S3Object, to_key: str, metadata: Metadata) -> None:
        """Copy the bytes of *key*, as *seen*, to *to_key* (which may be *key*) under *metadata*.

        Raises ``ConditionFailedError`` where *key* is another version by now.
        """
        source = {"CopySource": {"Bucket": self._calls.address.bucket, "Key": key}, "CopySourceIfMatch": seen.etag}
        target = {"ContentType": seen.mimetype, "Metadata": pack(metadata), **seen.headers}
        if seen.size > self._limits.single_copy or not self._calls.policy.call(
            lambda: self._is_copied_at_once(to_key, seen.size, source, target), self._calls.clock
        ):
            self._copy_in_parts(to_key, seen.size, source, target)

    def _is_copied_at_once(self, to_key: str, size: int, source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
        """Copy all bytes in one call; False where they are to be copied in parts.

        A slow server sends nothing until all bytes are copied; called again, it copies them a second time beside that.
        """
        try:
            self._calls.once("copy_object", Key=to_key, MetadataDirective="REPLACE", **source, **target)
        except NoReplyError:
            if size <= self._limits.copy_part:
                raise
            return False
        return True

    def _copy_in_parts(self, to_key: str, size: int, source: Mapping[str, Any], target: Mapping[str, Any]) -> None:
        upload_id = self._calls("create_multipart_upload", Key=to_key, **target)["UploadId"]
        which = {"Key": to_key, "UploadId": upload_id}
        try:
            parts = []
            for number, piece in enumerate(self._ranges(size), 1):
                copied = self._calls("upload_part_copy", PartNumber=number, CopySourceRange=piece, **which, **source)
                parts.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
        except BaseException:
            with contextlib.suppress(Exception):  # the error to be told is the one that brought us here
                self._calls("abort_multipart_upload", **which)
            raise
        self._calls("complete_multipart_upload", MultipartUpload={"Parts": parts}, **which)

    def _ranges(self, size: int) -> Iterator[str]:
        step = max(self._limits.copy_part, -(-size // MAX_PARTS))
        for start in range(0, size, step):
            yield f"bytes={start}-{min(start + step, size) - 1}"
