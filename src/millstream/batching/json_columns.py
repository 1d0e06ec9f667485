"""JSON text of whole columns at once: the same bytes that msgspec writes value by value."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CACHED = 1 << 17
"""Bytes that are examined together: few enough to stay in the processor's cache from one look to the next."""

_encoder = msgspec.json.Encoder()


def json_strings(values: Any) -> Any:
    """The JSON text of each of *values* (an Arrow string array), quotes and all, as a large_string array."""
    values = _flat(values).cast(pa.large_string())
    if not needs_escapes(values):
        return concatenated('"', values, '"')
    encoded = values.dictionary_encode()
    texts = [_encoder.encode(word).decode("utf-8") for word in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.large_string()).take(encoded.indices)


def json_integers(values: Any) -> Any:
    """The decimal digits of each of *values* (an Arrow integer array), ``null`` where it is null, as large_string."""
    return pc.fill_null(_flat(values).cast(pa.large_string()), "null")


def json_lists(texts: Any, offsets: Any) -> Any:
    """Join *texts* (large_string) with commas: one value for each pair of neighbours among *offsets*."""
    return pc.binary_join(pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), texts), _scalar(","))


def concatenated(*parts: Any) -> Any:
    """Each row's *parts* (large_string arrays, or text for all rows) one after the other."""
    return pc.binary_join_element_wise(*map(_scalar, parts), _scalar(""))


def needs_escapes(values: Any) -> bool:
    """Whether a quote, a backslash or a control character is in *values* (large_string; RFC 8785, 3.2.2.2)."""
    if not len(values):
        return False
    offsets = np.frombuffer(values.buffers()[1], np.int64)
    text = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    text = text[offsets[values.offset] : offsets[values.offset + len(values)]]
    parts = (text[first : first + _CACHED] for first in range(0, len(text), _CACHED))
    return any(((part < 0x20) | (part == 0x22) | (part == 0x5C)).any() for part in parts)


def _scalar(part: Any) -> Any:
    return pa.scalar(part, pa.large_string()) if isinstance(part, str) else part


def _flat(values: Any) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
