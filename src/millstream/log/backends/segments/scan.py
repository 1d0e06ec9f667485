"""Walking through the commits of a segment that has no footer: what is whole, where it ends, and why there."""

from __future__ import annotations

from pathlib import Path

from millstream.log.backend import VersionedValue
from millstream.log.backends.segments.files import read_part
from millstream.log.backends.segments.format import (
    COMMIT_HEAD,
    COMMIT_MARK,
    FOOTER_MARK,
    CommitHead,
    FormatError,
    SegmentHead,
    decode_commit,
    name_size,
)
from millstream.log.block import Block
from millstream.log.block_header import HEADER, BlockError, read_header

Entry = tuple[int, int, int, int, int, int, int, int]
"""One block: the fields of :data:`millstream.log.backends.segments.format.ENTRY`."""

_WINDOW = 256 << 10
_LOOK = 4 << 10
_NEAR = 64 << 10  # bytes to the next look; what lies between is read with it, as one read costs less than two
_SECTOR = 512


class SegmentScan:
    """A scan of the segment at *path*.

    It begins after *head*; each :meth:`run` resumes where the last one ended, at ``offset``, after the message
    ``last_id``. ``entries`` are the blocks since :meth:`take`; ``problems`` says what was wrong on the way.
    """

    def __init__(self, path: Path, head: SegmentHead) -> None:
        self._file = _Window(path)
        self._log = head.log
        self.offset = head.size
        self.last_id = head.first_id - 1
        self.received_at = head.received_at
        self.producers: dict[str, VersionedValue] = dict(head.producers)
        self.entries: list[Entry] = []
        self.problems: list[str] = []

    def run(self, limit: int) -> None:
        """Take in every commit up to the offset *limit*. What is damaged is left out, and said in ``problems``."""
        self._file.forget()
        while self.offset < limit:
            try:
                self._take_commit(limit, check=False)
            except FormatError as error:
                self.problems.append(f"{self._file.path}: at byte {self.offset}: {error}")
                if not self._skip(limit):
                    return

    def run_on(self, limit: int) -> bool:
        """Take in the commits after the confirmed ones as long as every checksum holds.

        False where what follows is not the rest of a write that was cut short, but damage.
        """
        self._file.forget()
        while self.offset < limit:
            try:
                self._take_commit(limit, check=True)
            except FormatError as error:
                self.problems.append(f"{self._file.path}: at byte {self.offset}: {error}")
                return self._is_torn(limit)
        return True

    def add(self, commit: CommitHead, entries: list[Entry]) -> None:
        """Take in one commit that is known to be whole."""
        self.entries += entries
        self.offset += commit.size + commit.bytes
        self.last_id = commit.last_id
        self.received_at = commit.received_at
        if commit.sequence:
            version = self.producers.get(commit.producer, VersionedValue()).version + 1
            self.producers[commit.producer] = VersionedValue(version, b"%d" % commit.sequence)

    def take(self) -> list[Entry]:
        """The entries found since this was last asked."""
        entries, self.entries = self.entries, []
        return entries

    def _take_commit(self, limit: int, *, check: bool) -> None:
        commit = self._commit_at(self.offset)
        if commit.previous_id != self.last_id or commit.last_id <= commit.previous_id:
            raise FormatError(f"a commit of ids {commit.previous_id + 1} to {commit.last_id} follows id {self.last_id}")
        if self.offset + commit.size + commit.bytes > limit:
            raise FormatError("the file ends within a commit")
        self.add(commit, self._blocks(commit, check=check))

    def _commit_at(self, offset: int) -> CommitHead:
        head = self._file.get(offset, COMMIT_HEAD)
        return decode_commit(self._file.get(offset, COMMIT_HEAD + name_size(head)))

    def _blocks(self, commit: CommitHead, *, check: bool) -> list[Entry]:
        entries: list[Entry] = []
        offset, first_id = self.offset + commit.size, commit.previous_id + 1
        end = offset + commit.bytes
        try:
            for _ in range(commit.blocks):
                head = read_header(self._file.get(offset, HEADER.size))
                if head.first_id != first_id or head.log != self._log:
                    raise FormatError(f"expected a block of this log that begins with id {first_id}")
                size = HEADER.size + head.stored_bytes
                if check and offset + size <= end:  # a torn header may state any size
                    Block(self._file.get(offset, size))
                times = (head.min_event_time, head.max_event_time, head.min_received_at, head.max_received_at)
                entries.append((first_id, head.last_id, offset, size, *times))
                offset, first_id = offset + size, head.last_id + 1
        except BlockError as error:
            raise FormatError(str(error)) from error
        if (offset, first_id) != (end, commit.last_id + 1):
            raise FormatError("the blocks do not match the totals that the commit states")
        return entries

    def _skip(self, limit: int) -> bool:
        """Go to the next commit that is sound; False where there is none."""
        offset = self.offset + 1
        while (offset := self._find(COMMIT_MARK, offset, limit)) >= 0:
            try:
                commit = self._commit_at(offset)
            except FormatError:
                offset += 1
                continue
            if commit.previous_id >= self.last_id:
                self.offset, self.last_id = offset, commit.previous_id
                return True
            offset += 1
        return False

    def _find(self, mark: bytes, offset: int, limit: int) -> int:
        while offset < limit:
            found = self._file.get(offset, min(_WINDOW, limit - offset)).find(mark)
            if found >= 0:
                return offset + found
            offset += _WINDOW - len(mark) + 1
        return -1

    def _is_torn(self, limit: int) -> bool:
        """Whether the rest looks like one write that never ended: cut short, or with sectors that were not written.

        A commit is written when the one before is on the disk, so no whole commit can follow one that is torn.
        """
        begin, last_id = self.offset, self.last_id
        if self._file.get(begin, len(FOOTER_MARK)) == FOOTER_MARK:
            return True
        followed = self._skip(limit)
        self.offset, self.last_id = begin, last_id
        return not followed and (self._is_cut_short(limit) or has_unwritten_sector(self._file.path, begin, limit))

    def _is_cut_short(self, limit: int) -> bool:
        left = limit - self.offset
        try:
            name = name_size(self._file.get(self.offset, COMMIT_HEAD))
            if left < COMMIT_HEAD + name:
                return True
            commit = self._commit_at(self.offset)
        except FormatError:
            return left < COMMIT_HEAD
        return left < commit.size + commit.bytes


def has_unwritten_sector(path: Path, begin: int, end: int) -> bool:
    """Whether some sector of the file from *begin* to *end* holds nothing but zeros, as after a power loss."""
    for start in range(begin, end, _WINDOW):
        data = read_part(path, start, min(_WINDOW, end - start))
        cut = -start % _SECTOR
        parts = [data[:cut], *(data[at : at + _SECTOR] for at in range(cut, len(data), _SECTOR))]
        if any(len(part) >= 8 and not any(part) for part in parts):
            return True
    return False


class _Window:
    """The file for small looks at it that move forward: in large reads where they are close, else each on its own.

    So the heads of large blocks are found without their bodies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._data = b""
        self._ahead = _LOOK

    def forget(self) -> None:
        """The file may have changed."""
        self._data = b""

    def get(self, offset: int, size: int) -> bytes:
        start = offset - self._offset
        if not 0 <= start <= start + size <= len(self._data):
            is_near = 0 <= start <= len(self._data) + _NEAR
            self._ahead = min(2 * self._ahead, _WINDOW) if is_near else _LOOK
            self._data = read_part(self.path, offset, max(size, self._ahead))
            self._offset, start = offset, 0
        return self._data[start : start + size]
