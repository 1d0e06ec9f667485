"""A fleet of devices for benchmarks of batching: each reports nine readings, together once a period, with delays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millstream.batching import Event
from millstream.batching.column_state import EVENT_SCHEMA

KEYS = 9
WINDOW = 50_000
MAX_DELAY = 20_000
PERIOD = 200_000
"""Readings of a device; the rest in ticks."""

PART = 1_000_000
"""Events that are made at once."""


def fleet(count: int, sources: int, seed: int = 1) -> pa.Table:
    """*count* events of *sources* devices in order of receipt (``EVENT_SCHEMA``), each with a digest of 64 digits.

    Within a period the devices report one after the other; what one reports at once lies within half a window.
    """
    return pa.concat_tables(fleet_parts(count, sources, seed)).combine_chunks()


def fleet_parts(count: int, sources: int, seed: int = 1) -> Iterator[pa.Table]:
    """What :func:`fleet` gives, a part at a time: each in order of receipt, and hardly before the one before it."""
    draw = np.random.default_rng(seed)
    names = pa.array([f"device-{number}" for number in range(sources)])
    keys = pa.array([f"key-{number}" for number in range(KEYS)])
    for first in range(0, count, PART):
        number = np.arange(first, min(first + PART, count))
        period, rest = np.divmod(number, sources * KEYS)
        source, key = np.divmod(rest, KEYS)
        time = period * PERIOD + source * PERIOD // sources + draw.integers(0, WINDOW // 2, len(number))
        received_at = time + draw.integers(0, MAX_DELAY, len(number))
        order = np.argsort(received_at, kind="stable")
        columns = [
            names.take(pa.array(source[order])),
            time[order],
            keys.take(pa.array(key[order])),
            _digests(draw, len(number)),
            received_at[order],
            number[: len(order)] + 1,
            np.zeros(len(number), np.int64),
        ]
        yield pa.table([pa.array(column) for column in columns], schema=EVENT_SCHEMA)


def events_of(table: pa.Table) -> list[Event]:
    """The rows of *table* (``EVENT_SCHEMA``) as events."""
    columns = (table[name].to_pylist() for name in Event.__struct_fields__)
    return [Event(*row) for row in zip(*columns, strict=True)]


def _digests(draw: np.random.Generator, count: int) -> pa.Array:
    """Random texts of 64 hexadecimal digits."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[draw.integers(0, 16, count * 64, dtype=np.uint8)]
    offsets = pa.py_buffer(np.arange(0, count * 64 + 1, 64, dtype=np.int32))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(digits))
