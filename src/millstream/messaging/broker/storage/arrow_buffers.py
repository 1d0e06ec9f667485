"""The memory of Arrow arrays, for what Arrow's own functions take longer for than the rest of a call: each of them
releases the interpreter, and waits for it."""

from __future__ import annotations

from typing import Any

from millstream.log.encoding.columns import offsets_of


def data_of(array: Any) -> bytes:
    """The values of *array*, binary or text, one after the other."""
    offsets = offsets_of(array)
    return bytes(memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]])
