"""Writing the segments of one log: commits, new segments, recovery after a crash."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from millstream.core.durable import sync_folder, write_durably
from millstream.log.backend import Commit, oldest_within
from millstream.log.backends.segments import index
from millstream.log.backends.segments.committed_segments import CommittedSegments
from millstream.log.backends.segments.files import read_at, sync, write_all
from millstream.log.backends.segments.format import (
    MOST_SNAPSHOT_BYTES,
    SEGMENT_HEAD,
    CommittedEnd,
    FormatError,
    encode_commit,
    encode_end,
    encode_footer,
    encode_segment,
    head_of,
)
from millstream.log.backends.segments.scan import Entry, SegmentScan
from millstream.log.block_header import log_hash
from millstream.log.errors import DamagedLogError, FencedError, StorageError, StorageReadOnlyError

SEGMENT_BYTES = 128 << 20
SEGMENT_BLOCKS = 65_536
"""A segment is sealed when it has this many bytes or blocks."""

_COPIED = 4 << 20


class SegmentStream(CommittedSegments):
    """The segments of *log* in *folder*. Who writes must hold the lock of the log.

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
        super().__init__(folder, log)
        self._synced = synced
        self._name = log
        self._segment_bytes = segment_bytes
        self._writing: tuple[int, int] | None = None
        self._end_file: int | None = None
        self._read_only = read_only

    @staticmethod
    def create(folder: Path, log: str, first_id: int = 1) -> None:
        """Make the first segment, which begins at *first_id*, and the file that says where it ends."""
        write_durably(folder / index.segment_name(first_id), encode_segment(log_hash(log), first_id, 0, {}))
        write_durably(folder / "end", encode_end(CommittedEnd(segment=first_id, last_id=first_id - 1)))

    def commit(self, commit: Commit) -> None:
        """Append *commit* and, where commits are synced, wait until it is on the disk.

        Raises :class:`FencedError` where it does not follow.
        """
        end, handle = self._writable()
        if commit.previous_id != end.last_id:
            raise FencedError(
                f"another writer has taken over log {self._name!r}; the last data of this writer was not stored: "
                "stop one of the two, and append the data again"
            )
        if end.offset >= self._segment_bytes or len(self._table) >= SEGMENT_BLOCKS:
            end = self._roll(end, handle)
            handle = self._handle(end.segment)
        head = head_of(commit)
        with _undone(handle, end.offset):
            data = [encode_commit(head), *(block.data for block in commit.blocks)]
            stop = write_all(handle, data, end.offset)
            if self._synced:
                sync(handle)
        with self._state:
            new_end = CommittedEnd(
                boot=self._boot,
                segment=end.segment,
                offset=stop,
                last_id=commit.last_id,
                received_at=commit.received_at,
            )
            self._announce(new_end)
            if self._scan is not None and self._scan.offset == end.offset:
                self._scan.add(head, _entries(commit, end.offset + head.size))
            self._follow(new_end)

    def settle(self, *, always: bool = False) -> None:
        """Wait until every commit is on the disk; with synced commits there is nothing to wait for.

        With *always* it waits all the same: the last writer may have left its commits to the system.
        """
        if always or not self._synced:
            sync(self._handle(self.end().segment))

    def settle_announced(self) -> None:
        """As :meth:`settle`, of the commits that readers see now. It needs no lock, and keeps no writer waiting."""
        if self._synced:
            return
        path = self._folder / index.segment_name(self.end().segment)
        with contextlib.suppress(FileNotFoundError):  # the segment was sealed since, which syncs it, and freed
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync(handle)
            finally:
                os.close(handle)

    def begin_at(self, first_id: int) -> None:
        """Let the next message get *first_id*, in a new segment: the ids between the last one and that are skipped."""
        end, handle = self._writable()
        self._roll(end, handle, first_id)

    def recover(self, confirmed_id: int = 0) -> None:
        """After a crash: take in what was written and not announced, cut off what is torn, announce the end.

        After a power loss nothing is known of commits that were not synced, except that all up to *confirmed_id* were.
        Raises :class:`DamagedLogError` where something is wrong that no crash explains, and changes nothing then.
        """
        with self._state:
            announced = self._announced() or CommittedEnd(segment=0)
            unsettled = not self._synced and announced.boot != self._boot
            segments = index.list_segments(self._folder)
            if not segments or segments[-1] < announced.segment:
                raise self._damage(
                    f"{index.segment_name(announced.segment)}, which contains confirmed messages, is missing"
                )
            scan, confirmed = self._open_last(segments[-1], CommittedEnd(segment=0) if unsettled else announced)
            path = self._folder / index.segment_name(segments[-1])
            size = path.stat().st_size
            whole = size >= confirmed and scan.offset >= confirmed and scan.run_on(size)
            if not whole and not (unsettled and scan.last_id >= confirmed_id):
                raise self._damage("; ".join(scan.problems) or f"{path} is shorter than its confirmed data")
            if scan.last_id < confirmed_id:
                raise self._damage(
                    f"{path.name} ends at id {scan.last_id}, but messages up to id {confirmed_id} were confirmed, so "
                    f"ids {scan.last_id + 1} to {confirmed_id} are missing"
                )
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

    def close(self) -> None:
        """Close the files that are written; the next commit opens them again."""
        self._close_handle()
        handle, self._end_file = self._end_file, None
        if handle is not None:
            os.close(handle)

    def _announce(self, end: CommittedEnd) -> None:
        if self._end_file is None:
            self._end_file = os.open(self._folder / "end", os.O_WRONLY | os.O_CLOEXEC)
        write_all(self._end_file, [encode_end(end)], 0)

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
            raise StorageReadOnlyError(f"{self._folder} is opened read-only: open the store for writing")
        end = self._end if self._end.boot == self._boot else self.end()  # only the holder of the lease moves it
        status = os.fstat(self._handle(end.segment))
        if not status.st_nlink:
            raise self._damage(f"{index.segment_name(end.segment)} was deleted while it was written")
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
        writing, self._writing = self._writing, None
        if writing is not None:
            os.close(writing[1])

    def _roll(self, end: CommittedEnd, handle: int, first_id: int = 0) -> CommittedEnd:
        """Seal the segment and begin the next one, with the next id or with *first_id*."""
        first_id = first_id or end.last_id + 1
        head = encode_segment(self._log, first_id, end.received_at, self.producers())
        if len(head) > SEGMENT_HEAD + MOST_SNAPSHOT_BYTES:
            raise StorageError(
                f"the sequences of all producers of log {self._name!r} take {len(head):,} bytes, more than the limit "
                f"of {MOST_SNAPSHOT_BYTES:,} bytes: copy the log to another store (`millstream log copy`), which "
                "leaves them out, and write to the copy; producers must not repeat earlier appends there"
            )
        with _undone(handle, end.offset):
            write_all(handle, [encode_footer(self._table.entries)], end.offset)
            sync(handle)
        write_durably(self._folder / index.segment_name(first_id), head)
        self._announce(
            CommittedEnd(
                boot=self._boot, segment=first_id, offset=len(head), last_id=first_id - 1, received_at=end.received_at
            )
        )
        return self.end()

    def _damage(self, what: str) -> DamagedLogError:
        return DamagedLogError(
            f"log {self._name!r} in {self._folder} is damaged: {what}. Restore the log from a backup; "
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


@contextlib.contextmanager
def _undone(handle: int, offset: int) -> Iterator[None]:
    """Cut the file to *offset* where writing to it fails; what failed to reach the disk is never retried."""
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
