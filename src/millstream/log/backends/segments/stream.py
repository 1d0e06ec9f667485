"""The blocks of one log in its segments: commits, where the confirmed ones end, recovery after a crash."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.core.durable import sync_folder, write_durably
from millstream.core.processes import boot_id
from millstream.log.backend import BlockStatistics, Commit, StoredBlock, VersionedValue, add_statistics, oldest_within
from millstream.log.backends.segments import index
from millstream.log.backends.segments.files import read_at, sync, write_all
from millstream.log.backends.segments.format import (
    END_SIZE,
    ENTRY,
    CommittedEnd,
    FormatError,
    decode_commit,
    decode_end,
    encode_commit,
    encode_end,
    encode_footer,
    encode_segment,
    summarize,
)
from millstream.log.backends.segments.scan import Entry, SegmentScan
from millstream.log.block import log_hash
from millstream.log.errors import DamagedLogError, FencedError, StorageReadOnlyError
from millstream.log.ids import BlockRange, IndexEntry

SEGMENT_BYTES = 128 << 20
SEGMENT_BLOCKS = 65_536
"""A segment is sealed when it has so many bytes or blocks."""

_COPIED = 4 << 20
_EVERYTHING = 2**63 - 1
_INDEX_FIELDS = [field for field in IndexEntry.__struct_fields__ if field in (ENTRY.names or ())]


class SegmentStream:
    """The segments of *log* in *folder*. Reading is thread-safe; who writes must hold the lock of the log.

    ``end`` is a small file that says where the confirmed commits end. It is written after each fdatasync and is not
    synced itself: with it readers see nothing that a power loss could take back. After a reboot it may be old, and
    the segments are walked through from there.

    Where it is not *synced*, commits are left to the system to write, until :meth:`settle`.
    """

    def __init__(
        self,
        folder: Path,
        log: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        read_only: bool = False,
        synced: bool = True,
    ) -> None:
        self._synced = synced
        self._folder = folder
        self._name = log
        self._log = log_hash(log)
        self._segment_bytes = segment_bytes
        self._boot = int.from_bytes(hashlib.sha256(boot_id().encode()).digest()[:8], "little")
        self._state = threading.RLock()
        self._sealed = index.SealedSegments(folder, self._log)
        self._end = CommittedEnd()
        self._segments: list[int] = []
        self._scan: SegmentScan | None = None
        self._table = index.ActiveSegmentIndex()
        self._writing: tuple[int, int] | None = None
        self._end_file = os.open(folder / "end", (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
        self._read_only = read_only

    @staticmethod
    def create(folder: Path, log: str, first_id: int = 1) -> None:
        """Make the first segment, which begins at *first_id*, and the file that says where it ends."""
        write_durably(folder / index.segment_name(first_id), encode_segment(log_hash(log), first_id, 0, {}))
        write_durably(folder / "end", encode_end(CommittedEnd(segment=first_id, last_id=first_id - 1)))

    def end(self) -> CommittedEnd:
        """Where the confirmed commits end at present; what there is up to there is known afterwards."""
        with self._state:
            end = self._announced()
            if end is None or end.boot != self._boot:
                return self._end_after_boot(end or CommittedEnd())
            if end != self._end:
                self._follow(end)
            return end

    def commit(self, commit: Commit) -> None:
        """Append *commit* and, where commits are synced, wait until it is on the disk.

        Raises :class:`FencedError` where it does not follow.
        """
        end, handle = self._writable()
        if commit.previous_id != end.last_id:
            raise FencedError(f"the log {self._name!r} has a newer writer; what this one sent last was not stored")
        if end.offset >= self._segment_bytes or len(self._table) >= SEGMENT_BLOCKS:
            end = self._roll(end, handle)
            handle = self._handle(end.segment)
        head = encode_commit(commit)
        with _undone(handle, end.offset):
            stop = write_all(handle, [head, *(block.data for block in commit.blocks)], end.offset)
            if self._synced:
                sync(handle)
        with self._state:
            self._announce(
                CommittedEnd(
                    boot=self._boot,
                    segment=end.segment,
                    offset=stop,
                    last_id=commit.last_id,
                    received_at=commit.received_at,
                )
            )
            if self._scan is not None and self._scan.offset == end.offset:
                self._scan.add(decode_commit(head), _entries(commit, end.offset + len(head)))
            self.end()

    def settle(self) -> None:
        """Wait until every commit is on the disk; with synced commits there is nothing to wait for."""
        if not self._synced:
            sync(self._handle(self.end().segment))

    def recover(self, confirmed_id: int = 0) -> None:
        """After a crash: take in what was written and not announced, cut off what is torn, announce the end.

        After a power loss nothing is known of commits that were not synced, except that all up to *confirmed_id* were.
        Raises :class:`DamagedLogError` where something is wrong that no crash explains.
        """
        with self._state:
            announced = self._announced() or CommittedEnd(segment=0)
            unsettled = not self._synced and announced.boot != self._boot
            segments = index.list_segments(self._folder)
            if not segments or segments[-1] < announced.segment:
                raise self._damage(f"{index.segment_name(announced.segment)} is gone, which confirmed messages are in")
            scan, confirmed = self._open_last(segments[-1], CommittedEnd(segment=0) if unsettled else announced)
            path = self._folder / index.segment_name(segments[-1])
            size = path.stat().st_size
            whole = size >= confirmed and scan.offset >= confirmed and scan.run_on(size)
            if not whole and not (unsettled and scan.last_id >= confirmed_id):
                raise self._damage("; ".join(scan.problems) or f"{path} is shorter than what was confirmed")
            end = CommittedEnd(
                boot=self._boot,
                segment=segments[-1],
                offset=scan.offset,
                last_id=scan.last_id,
                received_at=scan.received_at,
            )
            if end == announced and size == end.offset:
                return
            self._close_handle()
            handle = self._handle(end.segment)
            _write_again(handle, confirmed, end.offset)
            os.ftruncate(handle, end.offset)
            sync(handle)
            sync_folder(self._folder)
            self._announce(end)
            self._scan, self._end = None, CommittedEnd()
            self.end()

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
                found += index.read_blocks(
                    self._folder / index.segment_name(segment), part if len(part) else entries[:1]
                )
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
            cut = [self._sealed.entries(segment) for segment in sealed[:1] if segment < first_id]
            whole = [self._sealed.summary(segment) for segment in sealed if segment >= first_id]
            *begin, end = (summarize(index.select(part, first_id, _EVERYTHING)) for part in [*cut, self._table.entries])
            return add_statistics([*begin, *whole, end])

    def reclaim(self, below: int, *, max_bytes: int) -> int:
        """As :meth:`millstream.log.backend.Backend.reclaim`: whole segments, all but the last one."""
        with self._state:
            self.end()
            segments = index.list_segments(self._folder)
            old = [
                (first, (self._folder / index.segment_name(first)).stat().st_size)
                for first, following in itertools.pairwise(segments)
                if following <= min(below, self._end.segment)
            ]
            last, freed = oldest_within(old, max_bytes)
            for first, _ in old:
                if first <= last:
                    (self._folder / index.segment_name(first)).unlink()
                    self._sealed.forget(first)
            sync_folder(self._folder)
            self._segments = [first for first in self._segments if first > last]
            return freed

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

    def close(self) -> None:
        """Let go of the files."""
        with self._state:
            self._close_handle()
            os.close(self._end_file)

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

    def _announced(self) -> CommittedEnd | None:
        """What the file ``end`` says; None where it cannot be read. A write of another process may be under way."""
        for _ in range(3):
            with contextlib.suppress(FormatError):
                return decode_end(read_at(self._end_file, 0, END_SIZE))
        return None

    def _announce(self, end: CommittedEnd) -> None:
        write_all(self._end_file, [encode_end(end)], 0)

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
        """Nobody has written since the machine was started: the files say it, and stay as they are.

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

    def _open_last(self, segment: int, announced: CommittedEnd) -> tuple[SegmentScan, int]:
        """A walk through the last segment up to what was confirmed, and where that is."""
        try:
            head = index.read_head(self._folder, self._log, segment)
        except FormatError as error:
            raise self._damage(f"{index.segment_name(segment)}: {error}") from error
        scan = SegmentScan(self._folder / index.segment_name(segment), head)
        confirmed = max(announced.offset, head.size) if segment == announced.segment else head.size
        scan.run(confirmed)
        return scan, confirmed

    def _writable(self) -> tuple[CommittedEnd, int]:
        """The end, and the file to write to, which ends there."""
        if self._read_only:
            raise StorageReadOnlyError(f"{self._folder} is open for reading only")
        end = self.end()
        status = os.fstat(self._handle(end.segment))
        if not status.st_nlink:
            raise self._damage(f"{index.segment_name(end.segment)} was deleted while it was being written")
        if end.boot != self._boot or status.st_size != end.offset:
            self.recover()
            end = self.end()
        return end, self._handle(end.segment)

    def _handle(self, segment: int) -> int:
        if self._writing is None or self._writing[0] != segment:
            self._close_handle()
            self._writing = segment, os.open(self._folder / index.segment_name(segment), os.O_RDWR | os.O_CLOEXEC)
        return self._writing[1]

    def _close_handle(self) -> None:
        if self._writing is not None:
            os.close(self._writing[1])
            self._writing = None

    def _roll(self, end: CommittedEnd, handle: int) -> CommittedEnd:
        """Seal the segment and begin the next one."""
        with _undone(handle, end.offset):
            write_all(handle, [encode_footer(self._table.entries)], end.offset)
            sync(handle)
        first_id = end.last_id + 1
        head = encode_segment(self._log, first_id, end.received_at, self.producers())
        write_durably(self._folder / index.segment_name(first_id), head)
        self._announce(
            CommittedEnd(
                boot=self._boot, segment=first_id, offset=len(head), last_id=end.last_id, received_at=end.received_at
            )
        )
        return self.end()

    def _damage(self, what: str) -> DamagedLogError:
        return DamagedLogError(
            f"the log {self._name!r} in {self._folder} is damaged: {what}. Restore it from a copy; "
            f"`millstream log verify {self._name}` lists all damage"
        )


def _entries(commit: Commit, offset: int) -> list[Entry]:
    """The index of the blocks of *commit*, which begin at *offset*."""
    entries: list[Entry] = []
    for block in commit.blocks:
        head, size = block.header, len(block.data)
        times = (head.min_event_time, head.max_event_time, head.min_received_at, head.max_received_at)
        entries.append((head.first_id, head.last_id, offset, size, *times))
        offset += size
    return entries


def _reaches(sums: BlockStatistics, time: int) -> bool:
    return sums.max_received_at is not None and sums.max_received_at >= time


@contextlib.contextmanager
def _undone(handle: int, offset: int) -> Iterator[None]:
    """Cut the file to *offset* where writing to it fails; what failed to reach the disk is never tried again."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, offset)
        raise


def _write_again(handle: int, begin: int, end: int) -> None:
    """Write what lies in the file from *begin* to *end* once more: it is unknown whether all of it is on the disk."""
    for offset in range(begin, end, _COPIED):
        write_all(handle, [read_at(handle, offset, min(_COPIED, end - offset))], offset)
