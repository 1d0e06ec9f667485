"""The open records of many sources in columns, and the clock at which each source must be looked at again.

A step must cost what comes in it, not what is open. So records lie in a few parts of growing size, each at least twice
as large as all that came after it; what is taken out of a part is marked, and dropped when parts are merged.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.window_boundaries import Flags, Integers

NEVER = 2**62
"""A due time that does not come."""

_GONE = -1


class OpenRecords:
    """Records (``EVENT_SCHEMA``) by source, which is due at the earliest time that any of its records was added with.

    That time is *sure* where the batches of the source were found since its last record came; else nothing happens
    before it, and perhaps nothing at it.
    """

    _parts: list[_OpenChunk]
    _codes: dict[str, int]
    _due: Integers
    _sure: Flags

    def __init__(self) -> None:
        self._clear()

    @property
    def due(self) -> int | None:
        """The earliest time at which a source is due; None without records."""
        earliest = int(self._due.min(initial=NEVER))
        return None if earliest == NEVER else earliest

    @property
    def sources(self) -> int:
        """How many sources have records."""
        return int(np.count_nonzero(self._due < NEVER))

    def add(self, rows: pa.Table, due: Integers, *, sure: bool) -> None:
        """Take in *rows*, whose sources are due at *due* (one entry a row) at the latest."""
        if not len(rows):
            return
        part = _OpenChunk(rows.combine_chunks(), self._coded(rows))
        np.minimum.at(self._due, part.codes, due)
        self._sure[part.codes] = sure
        while self._parts and self._parts[-1].left <= 2 * part.left:
            part = self._parts.pop().merged(part)
        self._parts.append(part)

    def take_due(self, clock: int) -> pa.Table:
        """All records of the sources that are due at *clock*; they are here no more."""
        return self._take(self._due <= clock)

    def take_unsure(self) -> pa.Table:
        """All records of the sources that may be due before every source whose time is sure."""
        known = self._due[self._sure]
        return self._take(~self._sure & (self._due < NEVER) & (self._due <= known.min(initial=NEVER)))

    def table(self) -> pa.Table:
        """All records."""
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *(part.all() for part in self._parts)]).combine_chunks()

    def _take(self, chosen: Flags) -> pa.Table:
        if not chosen.any():
            return EVENT_SCHEMA.empty_table()
        self._due[chosen] = NEVER
        found = [part.take(chosen) for part in self._parts]
        self._parts = [part for part in self._parts if part.left]
        if not self._parts:
            self._clear()
        return pa.concat_tables(found)

    def _clear(self) -> None:
        self._parts, self._codes = [], {}
        self._due, self._sure = np.zeros(0, np.int64), np.zeros(0, np.bool_)

    def _coded(self, rows: pa.Table) -> Integers:
        """The number of each row's source; new ones get the next."""
        if len(self._codes) > 1024 + 4 * self.sources:
            self._forget()
        encoded = rows["source"].combine_chunks().dictionary_encode()
        codes, before = self._codes, len(self._codes)
        numbers = np.array([codes.setdefault(name, len(codes)) for name in encoded.dictionary.to_pylist()], np.int64)
        new = len(codes) - before
        self._due = np.append(self._due, np.full(new, NEVER))
        self._sure = np.append(self._sure, np.ones(new, np.bool_))
        found: Integers = numbers[encoded.indices.to_numpy()]
        return found

    def _forget(self) -> None:
        """Renumber the sources that have records, so that names that no longer occur are not kept."""
        kept = np.flatnonzero(self._due < NEVER)
        number = np.full(len(self._due), _GONE)
        number[kept] = np.arange(len(kept))
        self._codes = {name: int(number[code]) for name, code in self._codes.items() if number[code] != _GONE}
        self._due, self._sure = self._due[kept], self._sure[kept]
        for part in self._parts:
            part.renumber(number)


class _OpenChunk:
    """Some records and the number of each one's source."""

    def __init__(self, rows: pa.Table, codes: Integers) -> None:
        self._rows, self.codes = rows, codes
        self.left = len(codes)

    def all(self) -> pa.Table:
        """What is left."""
        if self.left == len(self.codes):
            return self._rows
        return self._rows.take(np.flatnonzero(self.codes != _GONE))

    def take(self, chosen: Flags) -> pa.Table:
        """Take out the rows of the sources that are *chosen* (one entry a number)."""
        rows = np.flatnonzero(np.append(chosen, False)[self.codes])  # the number of what is gone finds the last entry
        found = self._rows if len(rows) == len(self.codes) else self._rows.take(rows)
        self.codes[rows] = _GONE
        self.left -= len(rows)
        if 2 * self.left < len(self.codes):
            self._drop()
        return found

    def merged(self, other: _OpenChunk) -> _OpenChunk:
        """What is left of both."""
        rows = pa.concat_tables([self.all(), other.all()]).combine_chunks()
        return _OpenChunk(rows, np.concatenate([part.codes[part.codes != _GONE] for part in (self, other)]))

    def renumber(self, number: Integers) -> None:
        """Give the sources other numbers."""
        self.codes = np.append(number, _GONE)[self.codes]

    def _drop(self) -> None:
        self._rows = self.all()
        self.codes = self.codes[self.codes != _GONE]
