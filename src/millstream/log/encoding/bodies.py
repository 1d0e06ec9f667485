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

    def array(self) -> pa.Array:
        """The bodies (less than 2 GiB) as a binary array."""
        lengths = self.lengths
        offsets = even_offsets(lengths, self.count) if isinstance(lengths, int) else offsets_from(lengths)
        return pa.Array.from_buffers(pa.binary(), self.count, [None, offsets, pa.py_buffer(self.data)])


def join_bodies(bodies: Sequence[bytes], lengths: int | list[int]) -> Bodies:
    """A copy of *bodies*, each of which, or all, have these *lengths*. Raises :class:`TypeError` for what is not bytes.

    What has a buffer of single bytes (a bytearray, say) counts as bytes.
    """
    data, count = b"".join(bodies), len(bodies)
    if len(data) != (lengths * count if isinstance(lengths, int) else sum(lengths)):
        raise TypeError("a body is not bytes: pass only bytes")
    return Bodies(data, count, lengths if isinstance(lengths, int) else np.array(lengths, np.int64))


def merge_bodies(parts: Sequence[Bodies]) -> Bodies:
    """All bodies of *parts*, one after the other."""
    if len(parts) == 1:
        return parts[0]
    data = b"".join([part.data for part in parts])
    counts = [part.count for part in parts]
    lengths: list[Any] = [part.lengths for part in parts]
    if set(map(type, lengths)) != {int}:
        merged = np.concatenate([np.broadcast_to(part.lengths, part.count) for part in parts])
    elif lengths.count(lengths[0]) == len(lengths):
        return Bodies(data, sum(counts), lengths[0])
    else:
        merged = np.repeat(np.array(lengths, np.int64), counts)
    return Bodies(data, len(merged), merged)
