"""Content for the suites of storage providers: ids that are easily lost, and sources that break."""

from __future__ import annotations

import hashlib
import io

ODD_IDS = [
    "plain",
    "folder/file.txt",
    "with space",
    "naïve-Ω-日本",
    "new\nline",
    "tab\tand\\backslash",
    "a//b",
    "/leading",
    "trailing/",
    "/",
    "//",
    ".",
    "..",
    "./a",
    "../a",
    "a/../../b",
    ".hidden",
    ".millstream/format",
    "100%",
    "%2F",
    "%2F/a",
    "%00",
    'con:aux|*?"<>',
    "x" * 255,
    "x" * 256,
    "x" * 1024,
    "é" * 512,
    "%" * 1024,
    "/" * 1024,
    "deep/" * 200 + "er",
]
"""Content ids that a careless store loses, mixes up, or writes outside its own place."""


class Broken(io.RawIOBase):
    """A source that gives *data* and then fails."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:  # noqa: ARG002 - gives all at once
        if not self._data:
            raise OSError("the connection was lost")
        data, self._data = self._data, b""
        return data


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
