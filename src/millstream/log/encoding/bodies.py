"""The bodies of one call as one byte string and their lengths, so that nothing is made for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log.encoding.offsets import even_offsets, offsets_from


class Bodies(msgspec.Struct, frozen=True, gc=False):
    """*count* bodies, one after the other in ``data``.

    ``lengths`` (bytes) is an array of *count*, or one number where all are equally long.
    """

    data: bytes
    count: int
    lengths: int | npt.NDArray[np.int64]


def join_bodies(bodies: Sequence[bytes], lengths: int | list[int]) -> Bodies:
    """A copy of *bodies*, each of which, or all, have these *lengths*. Raises :class:`TypeError` for what is not bytes.

    What has a buffer of single bytes (a bytearray, say) counts as bytes.
    """
    data, count = b"".join(bodies), len(bodies)
    if len(data) != (lengths * count if isinstance(lengths, int) else sum(lengths)):
        raise TypeError("a body is not bytes: pass only bytes")
    return Bodies(data, count, lengths if isinstance(lengths, int) else np.array(lengths, np.int64))


def merge_bodies(parts: Sequence[Bodies]) -> pa.Array:
    """All bodies of *parts* (less than 2 GiB), one after the other, as a binary array."""
    data = parts[0].data if len(parts) == 1 else b"".join([part.data for part in parts])
    counts: list[int] = [part.count for part in parts]
    lengths: list[Any] = [part.lengths for part in parts]
    if set(map(type, lengths)) != {int}:
        offsets = offsets_from(np.concatenate([np.broadcast_to(part.lengths, part.count) for part in parts]))
    elif lengths.count(lengths[0]) == len(lengths):
        offsets = even_offsets(lengths[0], sum(counts))
    else:
        offsets = offsets_from(np.repeat(np.array(lengths, np.int64), counts))
    return pa.Array.from_buffers(pa.binary(), sum(counts), [None, offsets, pa.py_buffer(data)])
