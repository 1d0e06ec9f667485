"""Offsets of Arrow arrays, made from lengths. Arrow's memory is used again and again, which the system's is not."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_MOST_EVEN = 65_536


def even_offsets(step: int, count: int) -> pa.Buffer:
    """The offsets (int32) of *count* values of *step* bytes each, less than 2 GiB; the buffer may be longer."""
    if count > _MOST_EVEN or step * _MOST_EVEN >= 2**31:
        return pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(step))
    return _long_even_offsets(step)


def offsets_from(lengths: npt.NDArray[Any]) -> pa.Buffer:
    """The offsets (int32) of values of these *lengths*, which add up to less than 2 GiB."""
    buffer = pa.allocate_buffer(4 * (len(lengths) + 1))
    offsets = np.frombuffer(buffer, np.int32)
    offsets[0] = 0
    np.cumsum(lengths, out=offsets[1:])
    return buffer


@functools.lru_cache(maxsize=16)
def _long_even_offsets(step: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(_MOST_EVEN + 1, dtype=np.int32) * np.int32(step))
