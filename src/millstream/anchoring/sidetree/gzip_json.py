"""The outside of the five files: canonical JSON under GZIP, with bounds on both sizes."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from millstream.anchoring.sidetree.encoding import canonical
from millstream.anchoring.sidetree.errors import BatchFileError, BatchTooLargeError

UNIX, UNKNOWN = 3, 255
"""The operating system in a header: versions of Python write one or the other."""

_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x02"
"""GZIP, deflate, no flags, no time, best compression (RFC 1952); the operating system follows."""


def compress(data: bytes, *, system: int = UNIX) -> bytes:
    """*data* under GZIP; with the same zlib, the same bytes in all versions of Python. *system* is in the header."""
    return _HEADER + bytes([system]) + zlib.compress(data, 9, wbits=16 + zlib.MAX_WBITS)[len(_HEADER) + 1 :]


def pack(value: Any, file: str, limit: int, inflation: int, *, system: int = UNIX) -> bytes:
    """*value* as a file of at most *limit* bytes, and *inflation* times as many before compression.

    The same value gives the same bytes, as :func:`compress` does. *file* names it in the :class:`BatchTooLargeError`.
    """
    text = canonical(value)
    if len(text) > limit * inflation:
        raise BatchTooLargeError(file, len(text), limit * inflation, "bytes before compression")
    data = compress(text, system=system)
    if len(data) > limit:
        raise BatchTooLargeError(file, len(data), limit)
    return data


def unpack(data: bytes, file: str, limit: int, inflation: int) -> dict[str, Any]:
    """The object in *data*; at most *inflation* times *limit* bytes are ever unpacked.

    Raises :class:`BatchFileError`.
    """
    return json_object(inflate(data, file, limit * inflation), file)


def json_object(text: bytes, file: str) -> dict[str, Any]:
    """The JSON object *text*, which stands in *file*. Raises :class:`BatchFileError`."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatchFileError(f"the {file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BatchFileError(f"the {file} must be a JSON object")
    return value


def inflate(data: bytes, file: str, limit: int) -> bytes:
    """What *data* (GZIP) unpacks to; no more than *limit* bytes are ever unpacked. Raises :class:`BatchFileError`."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise BatchFileError(f"cannot decompress the {file} as GZIP: {error}") from error
    if len(text) > limit:
        raise BatchFileError(f"the {file} has more than {limit:,} bytes after decompression, its limit")
    if not stream.eof or stream.unused_data:
        raise BatchFileError(f"the {file} is truncated, or has data after its end")
    return text
