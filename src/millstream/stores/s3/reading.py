"""The bytes of an S3 object as a file that resumes where a connection broke."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.stores.hashing import CHUNK
from millstream.stores.protocol import ItemChangedError, StoreError, StoreUnavailableError
from millstream.stores.s3.client import S3Calls
from millstream.stores.s3.errors import ConditionFailedError, EmptyRangeError, translated

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def get_object(calls: S3Calls, key: str, *, checksums: bool = False) -> tuple[io.BufferedReader, Mapping[str, Any]]:
    """All bytes of the object *key*, and S3's metadata of it from the same response. Raises ``ItemNotFoundError``.

    With *checksums* those that the provider recorded are among the metadata, and reading bytes that do not have them
    raises :class:`StoreError`.
    """
    reader = _ObjectReader(calls, key, 0, None, {"ChecksumMode": "ENABLED"} if checksums else {})
    return io.BufferedReader(reader, CHUNK), reader.response


def open_object(calls: S3Calls, key: str, start: int, length: int | None) -> io.BufferedReader:
    """At most *length* bytes of the object *key* from *start*. Raises ``ItemNotFoundError`` where there is none."""
    if length == 0:
        calls("head_object", Key=key)
        return io.BufferedReader(io.BytesIO())
    return io.BufferedReader(_ObjectReader(calls, key, start, length), CHUNK)


def require_range(calls: S3Calls, key: str, start: int, response: Mapping[str, Any]) -> None:
    """Raise :class:`StoreError` where *response*, to a request for the bytes from *start* on, has others.

    HTTP allows to answer with the whole object; from 0 on, that begins with the bytes that were asked for.
    """
    found = str(response.get("ContentRange") or "")
    is_part = response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 206
    if found.startswith(f"bytes {start}-") if found else is_part or not start:
        return
    response["Body"].close()
    raise StoreError(
        f"{calls.address} was asked for the bytes of {key!r} from {start:,} on and answered with "
        f"{repr(found) if found else 'the whole object'}: the server, or a proxy before it, ignores ranges; use one "
        "that does not"
    )


class _ObjectReader(io.RawIOBase):
    """Reads one version of an object; when the connection breaks, it asks for the rest of the same version."""

    def __init__(
        self, calls: S3Calls, key: str, start: int, length: int | None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self._calls, self._key, self._arguments = calls, key, arguments or {}
        self._position = start
        self._end = None if length is None else start + length
        self._etag: str | None = None
        self._body: Any = None
        self.response: Mapping[str, Any] = {}
        self._pauses = calls.policy.pauses()
        self._ask()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        chunk = self._read(len(view))
        view[: len(chunk)] = chunk
        return len(chunk)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._read(CHUNK), b""))

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
        super().close()

    def _read(self, size: int) -> bytes:
        while True:
            try:
                return self._read_once(size)
            except StoreUnavailableError:
                pause = next(self._pauses, None)
                if pause is None:
                    raise
                self._calls.clock.sleep(pause)
                self._ask()

    def _read_once(self, size: int) -> bytes:
        if self._end is not None:
            size = min(size, self._end - self._position)
        if self._body is None or not size:
            return b""
        with translated(f"reading {self._key!r} of {self._calls.address}"):
            chunk: bytes = self._body.read(size)
        if chunk:
            self._position += len(chunk)
            self._pauses = self._calls.policy.pauses()
        return chunk

    def _ask(self) -> None:
        """Open the object where we are; nothing is to be read where that is its end."""
        arguments = dict(self._arguments)
        if self._position or self._end is not None:
            arguments["Range"] = f"bytes={self._position}-" + ("" if self._end is None else str(self._end - 1))
        if self._etag is not None:
            arguments["IfMatch"] = self._etag
        self._body = None
        try:
            response = self._calls("get_object", Key=self._key, **arguments)
        except EmptyRangeError:
            return
        except ConditionFailedError as error:
            raise ItemChangedError(f"{self._key!r} was replaced while it was read: read the object again") from error
        if "Range" in arguments:
            require_range(self._calls, self._key, self._position, response)
        self._body, self._etag, self.response = response["Body"], response.get("ETag"), response
