"""The codecs of a block's sections. Nothing is decompressed beyond the length that was announced and checked."""

from __future__ import annotations

from typing import Any

import lz4.block
import pyarrow as pa

from millstream.log.spec import Compression

PLAIN, LZ4, ZSTD = 0, 1, 2

_LEAST = 96  # bytes; below, no codec earns its place
_NOTHING = 64  # times smaller: whether it is 64 or 5,000 times makes no difference any more
_NUMBERS = {"plain": PLAIN, "lz4": LZ4, "zstd": ZSTD}
_LARGE = 512  # bytes a value; from here on Zstandard costs more processor than it saves in bytes


def compress(data: Any, compression: Compression, value_bytes: float = 0) -> tuple[int, Any]:
    """*data* (any buffer) under *compression*, or as it is where that saves less than an eighth.

    It holds values of *value_bytes* bytes on average, by which ``auto`` decides.
    What compresses to next to nothing is stored under LZ4 in any case, which is read in half the time. Returns the
    codec's number and the bytes to store.
    """
    size = len(data) if type(data) is bytes else memoryview(data).nbytes
    if size < _LEAST:
        return PLAIN, data
    if compression == "auto":
        compression = "lz4" if value_bytes >= _LARGE else "zstd"
    codec = _NUMBERS[compression]
    if codec == PLAIN:
        return PLAIN, data
    packed = _lz4(data) if codec == LZ4 else pa.Codec("zstd", compression_level=1).compress(data)
    left = memoryview(packed).nbytes
    if codec == ZSTD and left <= size // _NOTHING:
        simpler = _lz4(data)
        if len(simpler) <= size // _NOTHING:
            return LZ4, simpler
    return (codec, packed) if left <= size - size // 8 else (PLAIN, data)


def decompress(data: Any, codec: int, size: int) -> Any:
    """The *size* bytes that *data* stands for, as an Arrow buffer.

    Raises ValueError where *codec* is unknown or the bytes are not *size* bytes under it.
    """
    try:
        if codec == PLAIN:
            raw = pa.py_buffer(data)
        elif codec == LZ4:
            raw = pa.py_buffer(lz4.block.decompress(data, uncompressed_size=size))
        elif codec == ZSTD:
            raw = pa.Codec("zstd").decompress(data, size)
        else:
            raise ValueError(f"this release does not know codec {codec}")
    except (pa.ArrowException, OSError, lz4.block.LZ4BlockError) as error:
        raise ValueError(f"cannot decompress {len(data):,} bytes to {size:,} bytes: {error}") from error
    if raw.size != size:
        raise ValueError(f"the data has {raw.size:,} bytes after decompression, but {size:,} were expected")
    return raw


def _lz4(data: Any) -> bytes:
    packed: bytes = lz4.block.compress(data, store_size=False)
    return packed
