"""Event batches as lines under their Merkle roots, many at once: the same bytes as ``records.py`` makes of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.batching.json_columns import concatenated, json_integers, json_strings
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.message import encode_line, from_arrow


def encode_lines(messages: pa.Table) -> list[bytes]:
    """The canonical line of each of *messages* (``MESSAGE_SCHEMA``), without its newline.

    Raises :class:`BatchFormatError` where a number is beyond what JSON keeps exact (2^53 - 1).
    """
    for name in ("id", "event_time", "received_at"):
        _check_numbers(messages, name)
    columns = _columns(messages)
    if columns is None:
        return [encode_line(message) for batch in messages.to_batches() for message in from_arrow(batch)]
    lines: list[bytes] = concatenated(*columns).cast(pa.large_binary()).to_pylist()
    return lines


def seal_lines(lines: list[bytes], sizes: list[int]) -> tuple[list[str], list[bytes]]:
    """The Merkle roots (hex) and the joined lines of batches that hold *sizes* of *lines*, one after the other."""
    roots, joined, begin = [], [], 0
    leaves = list(map(leaf_hash, lines))
    for size in sizes:
        end = begin + size
        roots.append(merkle_root(leaves[begin:end]).hex())
        joined.append(b"\n".join(lines[begin:end]) + b"\n")
        begin = end
    return roots, joined


def _columns(messages: pa.Table) -> tuple[Any, ...] | None:
    """The parts of the lines; None where a message has headers or a body that is not text: those are others."""
    if pc.any(pc.greater(pc.list_value_length(messages["headers"]), 0)).as_py():
        return None
    try:
        bodies = messages["body"].cast(pa.string())
    except pa.ArrowInvalid:
        return None
    times = {name: json_integers(messages[name]) for name in ("event_time", "id", "received_at")}
    texts = {name: json_strings(messages[name]) for name in ("key", "source")}
    return (
        '{"body":',
        json_strings(bodies),
        ',"event_time":',
        times["event_time"],
        ',"id":',
        times["id"],
        ',"key":',
        texts["key"],
        ',"received_at":',
        times["received_at"],
        ',"source":',
        texts["source"],
        "}",
    )


def _check_numbers(messages: pa.Table, name: str) -> None:
    wrong = np.flatnonzero(np.abs(messages[name].to_numpy()) > MAX_SAFE_INTEGER)
    if len(wrong):
        number = messages["id"][int(wrong[0])].as_py()
        raise BatchFormatError(f"{name} of message {number} is outside -(2^53 - 1) to 2^53 - 1")
