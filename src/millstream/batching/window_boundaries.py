"""The boundaries of batches in sorted columns, computed for all records at once (reference "batching", §6.3).

Once records are sorted and copies are gone, the end of a batch depends on where it begins and on nothing before. Most
runs of records between two gaps are one batch, which a few sums over the run tell. In the others the ends of many
batches are computed together, and the true beginnings are found by going from end to end, from all the places at once
where a batch begins for certain.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.batching.batch_config import SizeLimits

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


_BITS = 57
"""So many bits that a sum over a run of as many rows fits a word: 57 times 2^56 is below 2^62."""


class WindowBoundaries(NamedTuple):
    """One entry a batch: its first row, the row after its last, whether a key or a cap cut it, the deciding time."""

    begins: Integers
    ends: Integers
    clashed: Flags
    capped: Flags
    decided: Integers


def find_window_boundaries(
    source: Integers,
    key: Integers,
    time: Integers,
    window: int,
    *,
    midpoint: bool,
    caps: SizeLimits | None = None,
    size: Integers | None = None,
) -> WindowBoundaries:
    """The batches of rows that are sorted by source, time and key, no such triple twice.

    *source* and *key* are codes from zero; *time* is event time in ticks; *size* is in bytes (without it only the count
    is capped); all have one entry a row.
    """
    if not len(time):
        numbers, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return WindowBoundaries(numbers, numbers, flags, flags, numbers)
    certain = _certain_begins(source, time, window)
    runs = np.append(np.flatnonzero(certain), len(time))
    plain = _plain_runs(runs, key, time, window)
    if caps is not None:
        plain &= _fit(runs, caps, size)
    found = _plain_borders(runs, plain, time, window)
    if plain.all():
        return found
    rest = np.flatnonzero(np.repeat(~plain, np.diff(runs)))
    size = None if size is None else size[rest]
    others = _SortedColumns(source[rest], key[rest], time[rest], window, midpoint=midpoint, caps=caps, size=size)
    return _together(found, _other_borders(others, certain[rest]), rest)


def _plain_runs(runs: Integers, key: Integers, time: Integers, window: int) -> Flags:
    """For each run without a gap, whether it lies within a window and surely has no key twice.

    *runs* are the first rows of each, and the end. Of a run of many rows that is not sure, nor where two keys have the
    same bit among a few; the others are told by two sums over bits, which are equal where no bit is added twice.
    """
    begins, lengths = runs[:-1], np.diff(runs)
    plain: Flags = (time[runs[1:] - 1] - time[begins] <= window) & (lengths <= _BITS)
    bits = np.left_shift(1, key if key.max() < _BITS else key % _BITS)
    plain &= np.add.reduceat(bits, begins) == np.bitwise_or.reduceat(bits, begins)
    return plain


def _fit(runs: Integers, caps: SizeLimits, size: Integers | None) -> Flags:
    """For each run, whether *caps* allow it as one batch."""
    fit: Flags = np.diff(runs) <= caps.count
    if size is not None:
        fit &= np.add.reduceat(size, runs[:-1]) <= caps.size
    return fit


def _plain_borders(runs: Integers, plain: Flags, time: Integers, window: int) -> WindowBoundaries:
    begins, ends = runs[:-1][plain], runs[1:][plain]
    nowhere = np.zeros(len(begins), np.bool_)
    return WindowBoundaries(begins, ends, nowhere, nowhere, time[begins] + window + 1)


def _other_borders(rows: _SortedColumns, certain: Flags) -> WindowBoundaries:
    """The batches of *rows*, which begin at those that are *certain* and elsewhere."""
    begins = _walk(certain, rows)
    cuts, clash = rows.cut(begins), rows.clash[begins]
    decided = np.where(cuts.clashed, rows.time[clash] + rows.midpoint, rows.time[begins] + rows.window + 1)
    decided = np.where(cuts.capped, rows.time[cuts.ends] + 1, decided)
    return WindowBoundaries(begins, cuts.ends, cuts.clashed, cuts.capped, decided)


def _together(found: WindowBoundaries, others: WindowBoundaries, rest: Integers) -> WindowBoundaries:
    """*found*, and *others* whose rows are the places in *rest*, in order. A run lies wholly in one of them."""
    others = others._replace(begins=rest[others.begins], ends=rest[others.ends - 1] + 1)
    if not len(found.begins):
        return others
    order = np.argsort(np.concatenate([found.begins, others.begins]), kind="stable")
    return WindowBoundaries(*(np.concatenate(pair)[order] for pair in zip(found, others, strict=True)))


class _Cuts(NamedTuple):
    """For batches that begin at given rows: the row after the last, and whether a key or a cap is the reason."""

    ends: Integers
    clashed: Flags
    capped: Flags


class _SortedColumns:
    """Sorted rows, and where the batches that begin at some of them are cut.

    ``clash`` is, for each row, the first row of the instant at which a key of a batch that begins there repeats.
    """

    def __init__(
        self,
        source: Integers,
        key: Integers,
        time: Integers,
        window: int,
        *,
        midpoint: bool,
        caps: SizeLimits | None,
        size: Integers | None,
    ) -> None:
        self.time, self.window, self.midpoint = np.append(time, 0), window, midpoint
        self._places = _RowSearch(source, time, window)
        instants = _instants(source, time)
        earlier, later = _same_key(source, key)
        self.clash = _clashes(earlier, later, instants)
        self._middles = np.append(_middles(time, earlier, later, instants), 0) if midpoint else None
        self._overflows = None if caps is None else _overflows(instants, caps, size)

    def __len__(self) -> int:
        return len(self.clash)

    def cut(self, rows: Integers) -> _Cuts:
        """The ends of batches that begin at *rows*: by time, else by key, else by size."""
        ends = self._places.find(rows, self.time[rows] + self.window, "right")
        clash = self.clash[rows]
        clashed, capped = clash < ends, np.zeros(len(rows), np.bool_)
        if self._overflows is not None:
            over = self._overflows[rows]
            capped = over < np.minimum(clash, ends)
            ends = np.where(capped, over, ends)
            clashed &= ~capped
        if self._middles is not None:
            clash = self._places.find(rows, np.where(clashed, self._middles[clash], self.time[rows]), "left")
        return _Cuts(np.where(clashed, clash, ends), clashed, capped)


class _RowSearch:
    """Finds times among the rows of a source, for many sources at once: source and time are one ascending number.

    The number counts ticks, or where that does not fit one word the distinct times. *reach* is how far beyond the last
    time may be asked for.
    """

    def __init__(self, source: Integers, time: Integers, reach: int) -> None:
        self._source = source
        self._first = int(time.min())
        self._times: Integers | None = None
        self._span = int(time.max()) - self._first + reach + 2
        place: Integers = time - self._first
        if (int(source[-1]) + 1) * self._span >= 2**63:
            self._times, place = np.unique(time, return_inverse=True)
            self._span = len(self._times) + 1
        self._code = source * self._span + place

    def find(self, rows: Integers, target: Integers, side: Literal["left", "right"]) -> Integers:
        """For each of *rows*, the place of its *target* time among the rows of its source."""
        if self._times is None:
            before = target - self._first + (side == "right")
        else:
            before = np.searchsorted(self._times, target, side)
        return np.searchsorted(self._code, self._source[rows] * self._span + before)


def _certain_begins(source: Integers, time: Integers, window: int) -> Flags:
    """The rows at which a batch begins for certain: a new source, or a gap that no window spans."""
    certain = np.ones(len(time), np.bool_)
    certain[1:] = (source[1:] != source[:-1]) | (time[1:] - time[:-1] > window)
    return certain


def _same_key(source: Integers, key: Integers) -> tuple[Integers, Integers]:
    """All pairs of rows that follow one another among those of their source and key: the earlier and the later ones."""
    code = source * (int(key.max()) + 1) + key
    order, ordered = _stable_order(code)
    near = np.flatnonzero(ordered[1:] == ordered[:-1])
    return order[near], order[near + 1]


def _stable_order(code: Integers) -> tuple[Integers, Integers]:
    """``argsort(kind="stable")`` and the codes in that order.

    Codes and row numbers are sorted in one word where they fit: that is far faster.
    """
    bits = len(code).bit_length()
    if int(code.max()) >> (63 - bits):
        order = np.argsort(code, kind="stable")
        return order, code[order]
    packed = np.sort((code << bits) | np.arange(len(code)))
    return packed & ((1 << bits) - 1), packed >> bits


def _instants(source: Integers, time: Integers) -> Integers:
    """For each row, the first row of its source and time."""
    begins = np.ones(len(time), np.bool_)
    begins[1:] = (time[1:] != time[:-1]) | (source[1:] != source[:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(time)), 0))


def _overflows(instants: Integers, caps: SizeLimits, size: Integers | None) -> Integers:
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


def _clashes(earlier: Integers, later: Integers, instants: Integers) -> Integers:
    """For each row, the first row of the first instant that repeats a key of it or of a row after it; else the end."""
    count = len(instants)
    clash = np.full(count, count, np.int64)
    clash[earlier] = instants[later]
    return np.minimum.accumulate(clash[::-1])[::-1]


def _middles(time: Integers, earlier: Integers, later: Integers, instants: Integers) -> Integers:
    """For the first row of each instant that repeats keys, the first tick at or after the latest of the midpoints.

    The latest one parts all the clashing pairs at once. Elsewhere the row's own time.
    """
    latest = np.full(len(time), -1, np.int64)
    np.maximum.at(latest, instants[later], earlier)
    starts = np.flatnonzero(latest >= 0)
    middles = time.copy()
    middles[starts] = (time[latest[starts]] + time[starts] + 1) // 2
    return middles


def _walk(begins: Flags, rows: _SortedColumns) -> Integers:
    """The rows at which batches begin: those of *begins*, and wherever a batch ends another begins.

    All are followed at once from batch to batch, until only a few long runs without a gap are left.
    """
    front = np.flatnonzero(begins)
    few = len(rows) // 4096 + 16
    while len(front) > few:
        front = rows.cut(front).ends
        front = front[front < len(rows)]
        front = front[~begins[front]]
        begins[front] = True
    if len(front):
        _walk_on(begins, front, rows.cut(np.arange(len(rows))).ends)
    return np.flatnonzero(begins)


def _walk_on(begins: Flags, front: Integers, ends: Integers) -> None:
    """Follow the batches from *front*, one after the other, and mark them in *begins*."""
    found: list[int] = []
    known, following = memoryview(begins).cast("B").cast("?"), memoryview(ends)  # type: ignore[arg-type]
    count, add = len(ends), found.append
    for row in front.tolist():
        place = following[row]
        while place < count and not known[place]:
            add(place)
            place = following[place]
    begins[found] = True
