"""Which blocks lie where: the index of each segment, and the blocks themselves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millstream.log.backend import BlockStatistics, StoredBlock
from millstream.log.backends.segments.files import read_part
from millstream.log.backends.segments.format import (
    ENTRY,
    FOOTER_TAIL,
    SEGMENT_HEAD,
    FormatError,
    SegmentHead,
    decode_footer,
    decode_segment,
    footer_size,
    snapshot_size,
    summarize,
)
from millstream.log.backends.segments.scan import Entry, SegmentScan

_KEPT = 8  # indexes of sealed segments in memory, 4 MiB each at most

NOTHING = np.empty(0, ENTRY)


def segment_name(first_id: int) -> str:
    """The name of the segment that begins at *first_id*."""
    return f"{first_id:020d}.seg"


def list_segments(folder: Path) -> list[int]:
    """The first ids of the segments in *folder*, sorted."""
    names = (path.stem for path in folder.glob("*.seg"))
    return sorted(int(name) for name in names if len(name) == 20 and name.isascii() and name.isdigit())


def read_head(folder: Path, log: int, first_id: int) -> SegmentHead:
    """The head of a segment, which must be one of *log* that begins at *first_id*. Raises :class:`FormatError`."""
    path = folder / segment_name(first_id)
    size = SEGMENT_HEAD + snapshot_size(read_part(path, 0, SEGMENT_HEAD))
    head = decode_segment(read_part(path, 0, size))
    if head.log != log:
        raise FormatError(
            f"the file belongs to another log: it has the log hash {head.log:016x}, and this log has {log:016x}"
        )
    if head.first_id != first_id:
        raise FormatError(f"the segment begins at id {head.first_id}, but its file name states id {first_id}")
    return head


class ActiveSegmentIndex:
    """The index of the segment that is being written: grows, and what was handed out of it stays as it was."""

    def __init__(self) -> None:
        self._rows = np.empty(64, ENTRY)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add *entries* at the end."""
        needed = self._count + len(entries)
        if needed > len(self._rows):
            rows = np.empty(max(needed, 2 * len(self._rows)), ENTRY)
            rows[: self._count] = self._rows[: self._count]
            self._rows = rows
        self._rows[self._count : needed] = entries
        self._count = needed

    @property
    def entries(self) -> Any:
        """All of it, as an array of ``ENTRY``."""
        return self._rows[: self._count]


class SealedSegments:
    """The segments of *log* in *folder* that are written no more, and what their footers say."""

    def __init__(self, folder: Path, log: int) -> None:
        self._folder = folder
        self._log = log
        self._indexes: dict[int, Any] = {}
        self._sums: dict[int, BlockStatistics] = {}
        self._rebuilt: tuple[tuple[int, ...], Any] = (), NOTHING  # the last index of a damaged segment, and its version

    def entries(self, first_id: int) -> Any:
        """The index of a segment; rebuilt if its footer is damaged, empty if the segment cannot be used."""
        found = self._indexes.pop(first_id, None)
        if found is None:
            version = self._version(first_id)
            if version == self._rebuilt[0]:
                return self._rebuilt[1]
            found, problems = self.load(first_id)
            if problems:
                self._rebuilt = version, found  # until it is put right, which may be while we run
                return found
        self._indexes[first_id] = found
        if len(self._indexes) > _KEPT:
            del self._indexes[next(iter(self._indexes))]
        return found

    def summary(self, first_id: int) -> BlockStatistics:
        """The totals of the blocks of a segment."""
        if first_id not in self._sums:
            found, problems = self.load(first_id)
            if problems:
                return summarize(found)
            self._sums[first_id] = summarize(found)
        return self._sums[first_id]

    def forget(self, first_id: int) -> None:
        """A segment was deleted."""
        self._indexes.pop(first_id, None)
        self._sums.pop(first_id, None)

    def _version(self, first_id: int) -> tuple[int, ...]:
        """What differs once the file of a segment is replaced or written to."""
        try:
            status = (self._folder / segment_name(first_id)).stat()
        except FileNotFoundError:
            return (first_id,)
        return first_id, status.st_ino, status.st_size, status.st_mtime_ns

    def check(self, first_id: int) -> tuple[list[str], int]:
        """Faults of head and footer of a segment, and the end of its commits (0: unknown)."""
        _, problems = self.load(first_id)
        path = self._folder / segment_name(first_id)
        return problems, 0 if problems else path.stat().st_size - _footer_of(path)

    def load(self, first_id: int) -> tuple[Any, list[str]]:
        """The index of a segment as its file has it now, and what is wrong with head and footer."""
        path = self._folder / segment_name(first_id)
        try:
            head = read_head(self._folder, self._log, first_id)
        except FileNotFoundError:
            return NOTHING, [f"{path} is missing"]
        except FormatError as error:
            return NOTHING, [f"{path}: the head of the segment is invalid: {error}"]
        try:
            return _read_footer(path), []
        except FormatError as error:
            scan, table = SegmentScan(path, head), ActiveSegmentIndex()
            scan.run(path.stat().st_size)
            table.extend(scan.take())
            return table.entries, [f"{path}: the footer of the segment is damaged: {error}"]


def _read_footer(path: Path) -> Any:
    footer = _footer_of(path)
    return decode_footer(read_part(path, path.stat().st_size - footer, footer))


def _footer_of(path: Path) -> int:
    """How many bytes the footer has."""
    size = path.stat().st_size
    footer = footer_size(read_part(path, max(size - FOOTER_TAIL, 0), FOOTER_TAIL))
    if footer > size:
        raise FormatError(f"a footer of {footer} bytes does not fit into the file")
    return footer


def select(entries: Any, first_id: int, last_id: int) -> Any:
    """Those of *entries* that hold *first_id* to *last_id*."""
    start = int(np.searchsorted(entries["last_id"], first_id, "left"))
    return entries[start : int(np.searchsorted(entries["first_id"], last_id, "right"))]


def holding(segments: Sequence[int], first_id: int, last_id: int) -> Iterator[int]:
    """Those of *segments* (sorted first ids) that may hold *first_id* to *last_id*."""
    start = max(bisect_right(segments, first_id) - 1, 0)
    return iter(segments[start : bisect_right(segments, last_id)])


def since(segments: Sequence[int], first_id: int) -> list[int]:
    """Those of *segments* (sorted first ids) that may hold *first_id* and what comes after it; the last one always."""
    return list(segments[max(bisect_right(segments, first_id) - 1, 0) :])


def within(entries: Any, max_bytes: int) -> Any:
    """As many of *entries* as take *max_bytes*."""
    return entries[: int(np.searchsorted(np.cumsum(entries["bytes"]), max_bytes, "right"))]


def read_blocks(path: Path, entries: Any) -> list[StoredBlock]:
    """The blocks *entries* of one segment, in one read. What the file lacks is missing from their bytes."""
    rows = entries[["first_id", "last_id", "offset", "bytes"]].tolist()
    begin = rows[0][2]
    try:
        data = read_part(path, begin, rows[-1][2] + rows[-1][3] - begin)
    except FileNotFoundError:
        return []
    return [
        StoredBlock(first, last, data[offset - begin : offset - begin + size]) for first, last, offset, size in rows
    ]
