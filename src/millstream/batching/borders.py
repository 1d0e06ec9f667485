"""Where batches begin and end in sorted columns, computed for all records at once (reference "batching", §6.3).

Once records are sorted and copies are gone, the end of a batch depends on where it begins and on nothing before. So the
end is computed for every possible beginning, and the true beginnings are found by walking from end to end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.batching.config import Caps

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Borders(NamedTuple):
    """One entry a batch: its first row, the row after its last, whether a key or a cap cut it, the deciding time."""

    begins: Integers
    ends: Integers
    clashed: Flags
    capped: Flags
    decided: Integers


def find_borders(
    source: Integers,
    key: Integers,
    time: Integers,
    window: int,
    *,
    midpoint: bool,
    caps: Caps | None = None,
    size: Integers | None = None,
) -> Borders:
    """The batches of rows that are sorted by source, time and key, no such triple twice.

    *source* and *key* are codes from zero; *time* is event time in ticks; *size* is in bytes (without it only the count
    is capped); all have one entry a row.
    """
    if not len(time):
        numbers, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return Borders(numbers, numbers, flags, flags, numbers)
    firsts = _firsts(source)
    full = _search(firsts, time, time + window, "right")
    earlier, later = _same_key(source, key)
    instants = _instants(source, time)
    clash = np.append(instants, len(time))[np.minimum.accumulate(later[::-1])[::-1]]
    clashed = clash < full
    capped = np.zeros(len(time), np.bool_)
    if caps is not None:
        over = _overflows(instants, caps, size)
        capped = over < np.minimum(clash, full)
        clashed &= ~capped
    if midpoint:
        split = _search(firsts, time, _middles(time, earlier, instants), "left")
        ends = np.where(clashed, np.append(split, len(time))[clash], full)
    else:
        ends = np.where(clashed, clash, full)
    if caps is not None:
        ends = np.where(capped, over, ends)
    begins = _walk(ends)
    clashed, capped, ends = clashed[begins], capped[begins], ends[begins]
    at_clash = np.append(time, 0)[clash[begins]] + midpoint
    decided = np.where(clashed, at_clash, time[begins] + window + 1)
    return Borders(begins, ends, clashed, capped, np.where(capped, np.append(time, 0)[ends] + 1, decided))


def _firsts(source: Integers) -> Integers:
    """The first row of each source, and the number of rows."""
    changes = np.flatnonzero(source[1:] != source[:-1]) + 1
    return np.concatenate(([0], changes, [len(source)])).astype(np.int64)


def _search(firsts: Integers, time: Integers, target: Integers, side: str) -> Integers:
    """For each row, the place of its *target* time among the rows of its own source."""
    found = np.empty(len(time), np.int64)
    for low, high in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        found[low:high] = np.searchsorted(time[low:high], target[low:high], side=side)  # type: ignore[call-overload]
        found[low:high] += low
    return found


def _same_key(source: Integers, key: Integers) -> tuple[Integers, Integers]:
    """For each row, the row before and the row after it with its source and key; -1 and the number of rows if none."""
    count = len(key)
    code = source * (int(key.max()) + 1) + key
    order = _stable_order(code)
    near = code[order[1:]] == code[order[:-1]]
    earlier, later = np.full(count, -1, np.int64), np.full(count, count, np.int64)
    earlier[order[1:][near]] = order[:-1][near]
    later[order[:-1][near]] = order[1:][near]
    return earlier, later


def _stable_order(code: Integers) -> Integers:
    """``argsort(kind="stable")``, by sorting codes and row numbers in one word where they fit: that is far faster."""
    bits = len(code).bit_length()
    if int(code.max()) >> (63 - bits):
        return np.argsort(code, kind="stable")
    return np.sort((code << bits) | np.arange(len(code))) & ((1 << bits) - 1)


def _instants(source: Integers, time: Integers) -> Integers:
    """For each row, the first row of its source and time."""
    begins = np.ones(len(time), np.bool_)
    begins[1:] = (time[1:] != time[:-1]) | (source[1:] != source[:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(time)), 0))


def _overflows(instants: Integers, caps: Caps, size: Integers | None) -> Integers:
    """For each row, the row at which a batch that begins there is cut by *caps*, whatever else may cut it before.

    That is the first row of the instant that does not fit, or where this is the first instant, the row itself.
    """
    rows = np.arange(len(instants))
    over = rows + min(caps.count, len(rows))
    if size is not None:
        filled = np.append(0, np.cumsum(size))
        by_bytes = np.searchsorted(filled, filled[:-1] + caps.size, side="right") - 1
        over = np.minimum(over, np.maximum(by_bytes, rows + 1))
    over = np.minimum(over, len(rows))
    cut = np.append(instants, len(rows))[over]
    return np.where(cut > rows, cut, over)


def _middles(time: Integers, earlier: Integers, instants: Integers) -> Integers:
    """For the first row of each instant that repeats keys, the first tick at or after the latest of the midpoints.

    The latest one parts all the clashing pairs at once. Elsewhere the row's own time.
    """
    starts = np.flatnonzero(instants == np.arange(len(time)))
    latest = np.maximum.reduceat(earlier, starts)
    starts, latest = starts[latest >= 0], latest[latest >= 0]
    middles = time.copy()
    middles[starts] = (time[latest] + time[starts] + 1) // 2
    return middles


def _walk(ends: Integers) -> Integers:
    """The rows at which batches begin: the first row, and wherever a batch ends another begins."""
    begins: list[int] = []
    row, count = 0, len(ends)
    view = memoryview(ends)  # type: ignore[arg-type]
    while row < count:
        begins.append(row)
        row = view[row]
    return np.array(begins, np.int64)
