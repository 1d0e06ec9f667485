"""The small JSON objects of a log, read with a clear error where their bytes are damaged."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from millstream.core.decoding import prepared
from millstream.log.errors import DamagedLogError

Content = TypeVar("Content")


def decode_object(name: str, data: bytes, content: type[Content]) -> Content:
    """The *content* in *data*, the bytes of the object *name*. Raises :class:`DamagedLogError`."""
    try:
        return msgspec.json.decode(data, type=prepared(content))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedLogError(f"object {name!r} is damaged: {error}. Restore it from a copy of the bucket") from error
