"""A part of a file, read as if it were the whole."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from millstream.stores.os_errors import translated
from millstream.stores.protocol import StoreInputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RangeReader(io.RawIOBase):
    """At most *length* bytes of *file* (unbuffered, its own from now on) from *start*; errors are store errors."""

    def __init__(self, file: io.FileIO | io.BytesIO, start: int = 0, length: int | None = None) -> None:
        super().__init__()
        check_range(start, length)
        self._file = file
        self._left = length
        if start:
            file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        if self._left is not None:
            view = view[: self._left]
        with translated("reading"):
            count = self._file.readinto(view) or 0
        if self._left is not None:
            self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def check_range(start: int, length: int | None) -> None:
    """Raise :class:`StoreInputError` where *start* or *length* is negative."""
    for name, value in (("start", start), ("length", length)):
        if value is not None and value < 0:
            raise StoreInputError(f"invalid {name} {value:,} of the range: give 0 or more bytes")
