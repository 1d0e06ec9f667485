"""The memory of Arrow arrays, for what Arrow's own functions take longer for than the rest of a call: each of them
releases the interpreter, and waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def offsets_of(array: Any) -> npt.NDArray[np.int32]:
    """The *n* + 1 offsets of *array*, *n* values of binary, text or lists, into its values."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def data_of(array: Any) -> bytes:
    """The values of *array*, binary or text, one after the other."""
    offsets = offsets_of(array)
    return bytes(memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]])
