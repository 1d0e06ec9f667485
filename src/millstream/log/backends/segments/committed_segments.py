"""The confirmed blocks of one log in its segments: where they end, and how they are read."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.core.processes import boot_id
from millstream.log.backend import BlockStatistics, StoredBlock, VersionedValue, add_statistics
from millstream.log.backends.segments import index
from millstream.log.backends.segments.files import read_part
from millstream.log.backends.segments.format import END_SIZE, ENTRY, CommittedEnd, FormatError, decode_end, summarize
from millstream.log.backends.segments.scan import SegmentScan
from millstream.log.block_header import log_hash
from millstream.log.ids import MAX_ID, BlockRange, IndexEntry

_INDEX_FIELDS = [field for field in IndexEntry.__struct_fields__ if field in (ENTRY.names or ())]


class CommittedSegments:
    """The segments of *log* in *folder*, as far as their commits are confirmed. Thread-safe.

    ``end`` is a small file that says where the confirmed commits end. It is written after each fdatasync and is not
    synced itself: with it readers see nothing that a power loss could take back. After a reboot it may be old, and
    the segments are walked through from there.
    """

    def __init__(self, folder: Path, log: str) -> None:
        self._folder = folder
        self._log = log_hash(log)
        self._boot = int.from_bytes(hashlib.sha256(boot_id().encode()).digest()[:8], "little")
        self._state = threading.RLock()
        self._sealed = index.SealedSegments(folder, self._log)
        self._end = CommittedEnd()
        self._segments: list[int] = []
        self._scan: SegmentScan | None = None
        self._table = index.ActiveSegmentIndex()

    def end(self) -> CommittedEnd:
        """The present end of the confirmed commits; afterwards everything up to it is known."""
        with self._state:
            end = self._announced()
            if end is None or end.boot != self._boot:
                return self._end_after_boot(end or CommittedEnd())
            if end != self._end:
                self._follow(end)
            return end

    def producer(self, name: str) -> VersionedValue:
        """The last sequence of the producer *name*, and how often it was set."""
        return self.producers().get(name, VersionedValue())

    def producers(self) -> Mapping[str, VersionedValue]:
        """The last sequences of all producers."""
        with self._state:
            self.end()
            return dict(self._scan.producers) if self._scan is not None else {}

    def read(self, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        """As :meth:`millstream.log.backend.Backend.read`."""
        found: list[StoredBlock] = []
        for segment, entries in self._select(first_id, last_id):
            part = index.within(entries, max_bytes - sum(len(block.data) for block in found))
            if len(part) or not found:
                blocks = index.read_blocks(
                    self._folder / index.segment_name(segment), part if len(part) else entries[:1]
                )
                if not blocks:  # the file is gone, but what follows may be there
                    self._forget(segment)
                    continue
                found += blocks
            if len(part) < len(entries):
                break
        return found

    def ranges(self, first_id: int, last_id: int) -> Sequence[BlockRange]:
        """As :meth:`millstream.log.backend.Backend.ranges`."""
        return [
            BlockRange(*row)
            for _, entries in self._select(first_id, last_id)
            for row in entries[["first_id", "last_id", "bytes"]].tolist()
        ]

    def index(self, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        """As :meth:`millstream.log.backend.Backend.index`."""
        return [
            IndexEntry(*row)
            for _, entries in self._select(first_id, last_id)
            for row in entries[_INDEX_FIELDS].tolist()
        ]

    def first_block_since(self, time: int, first_id: int = 1) -> BlockRange | None:
        """As :meth:`millstream.log.backend.Backend.first_block_since`."""
        with self._state:
            self.end()
            segments, live = index.since(self._segments, first_id), self._table.entries
        for segment in segments:
            with self._state:
                if segment != segments[-1] and not _reaches(self._sealed.summary(segment), time):
                    continue
                entries = live if segment == segments[-1] else self._sealed.entries(segment)
            found = entries[(entries["max_received_at"] >= time) & (entries["last_id"] >= first_id)][:1]
            if len(found):
                return BlockRange(*found[["first_id", "last_id", "bytes"]].tolist()[0])
        return None

    def statistics(self, first_id: int = 1) -> BlockStatistics:
        """As :meth:`millstream.log.backend.Backend.statistics`."""
        with self._state:
            self.end()
            *sealed, _ = index.since(self._segments, first_id)
            live = self._table.entries
        parts = []
        for segment in sealed:
            with self._state:  # not for all at once: commits need it, and the footers of a large log take long to read
                whole = segment >= first_id
                parts.append(
                    self._sealed.summary(segment) if whole else _since(self._sealed.entries(segment), first_id)
                )
        return add_statistics([*parts, _since(live, first_id)])

    def check(self, first_id: int) -> Sequence[str]:
        """Heads, footers and the heads of commits, in the segments that hold *first_id* and what comes after it."""
        problems: list[str] = []
        end = self.end()
        for segment in index.since(self._segments, first_id):
            path = self._folder / index.segment_name(segment)
            live = segment == end.segment
            found, limit = ([], end.offset) if live else self._sealed.check(segment)
            problems += found
            if limit:
                with contextlib.suppress(FormatError, FileNotFoundError):
                    scan = SegmentScan(path, index.read_head(self._folder, self._log, segment))
                    scan.run(limit)
                    problems += scan.problems
        return problems

    def _select(self, first_id: int, last_id: int) -> Iterator[tuple[int, Any]]:
        with self._state:
            self.end()
            segments, live = list(self._segments), self._table.entries
        for segment in index.holding(segments, first_id, last_id):
            with self._state:
                entries = live if segment == segments[-1] else self._sealed.entries(segment)
            chosen = index.select(entries, first_id, last_id)
            if len(chosen):
                yield segment, chosen

    def _forget(self, segment: int) -> None:
        with self._state:
            self._sealed.forget(segment)

    def _announced(self) -> CommittedEnd | None:
        """The content of the file ``end``; None if it cannot be read: another process may be writing it."""
        for _ in range(3):
            with contextlib.suppress(FormatError):
                return decode_end(read_part(self._folder / "end", 0, END_SIZE))
        return None

    def _follow(self, end: CommittedEnd) -> None:
        if self._scan is None or end.segment != self._end.segment or end.offset < self._scan.offset:
            self._open(end.segment)
        if self._scan is not None:
            self._scan.run(end.offset)
            self._table.extend(self._scan.take())
        self._end = end

    def _open(self, segment: int) -> None:
        self._segments = [first for first in index.list_segments(self._folder) if first < segment] + [segment]
        self._table = index.ActiveSegmentIndex()
        try:
            head = index.read_head(self._folder, self._log, segment)
            self._scan = SegmentScan(self._folder / index.segment_name(segment), head)
        except (FileNotFoundError, FormatError):
            self._scan = None

    def _end_after_boot(self, announced: CommittedEnd) -> CommittedEnd:
        """No process has written since the machine was started: the files say it, and stay as they are.

        Where they end in damage, the end lies one message further, so that readers are told what is missing.
        """
        segment = max([announced.segment, *index.list_segments(self._folder)])
        path = self._folder / index.segment_name(segment)
        size = path.stat().st_size if path.exists() else 0
        if (self._end.segment, self._end.offset) == (segment, size):
            return self._end
        self._open(segment)
        last_id, received_at = announced.last_id, announced.received_at
        if self._scan is None:
            last_id = max(last_id, segment)
        else:
            whole = self._scan.run_on(size)
            if not whole:
                self._scan.run(size)
            self._table.extend(self._scan.take())
            last_id = max(last_id, self._scan.last_id + (0 if whole or self._scan.offset >= size else 1))
            received_at = max(received_at, self._scan.received_at)
        self._end = CommittedEnd(
            boot=announced.boot, segment=segment, offset=size, last_id=last_id, received_at=received_at
        )
        return self._end


def _since(entries: Any, first_id: int) -> BlockStatistics:
    return summarize(index.select(entries, first_id, MAX_ID))


def _reaches(sums: BlockStatistics, time: int) -> bool:
    return sums.max_received_at is not None and sums.max_received_at >= time
