"""The commits of one log as this process knows them: found by their numbers, and followed to the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from millstream.log.backend import BlockStatistics
from millstream.log.backends.objects.commit_columns import CommitColumns, CommitRecord
from millstream.log.backends.objects.commit_follower import CommitFollower
from millstream.log.backends.objects.commit_object import ADVICE, PREFIX, CommitObject, commit_text
from millstream.log.backends.objects.commit_reader import NEAR_BYTES, CommitReader, DamagedHead
from millstream.log.backends.objects.layouts import Layout, Layouts, ProducerSequence
from millstream.log.errors import DamagedLogError

PEEKS = 10
"""How often one that follows a log looks for the next commit alone, before it looks at everything."""

_COMPARE = "Compare both objects with a copy of the bucket, and restore the one that differs"


class ChainEnd(msgspec.Struct, frozen=True):
    """The last commit: its number, epoch, digest, last id and last receive time."""

    number: int
    epoch: int
    digest: bytes
    last_id: int
    received_at: int


class CommitChain:
    """The commits from the start of the layout on, in order. Thread-safe."""

    def __init__(self, reader: CommitReader, layouts: Layouts) -> None:
        self._reader, self._layouts = reader, layouts
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._peeked: Sequence[CommitObject | DamagedHead] = []
        self._peeks = 0
        self._reset(layouts.newest)

    def _reset(self, layout: Layout) -> None:
        self._base = layout
        self._commits = CommitColumns(layout.start, layout.last_id)
        self._last = ChainEnd(layout.start - 1, layout.epoch, layout.previous, layout.last_id, layout.received_at)
        self._producers = dict(layout.producers)

    @property
    def end(self) -> ChainEnd:
        """The last commit that is known."""
        with self._lock:
            return self._last

    def producer(self, name: str) -> ProducerSequence | None:
        """The last sequence of the producer of that name."""
        with self._lock:
            return self._producers.get(name)

    def producers(self) -> dict[str, ProducerSequence]:
        """The last sequence of each producer."""
        with self._lock:
            return dict(self._producers)

    def records(self, first_id: int, last_id: int, limit: int) -> Sequence[CommitRecord]:
        """The first *limit* commits with blocks that hold ids from *first_id* to *last_id*."""
        found: list[CommitRecord] = []
        with self._lock:
            index = self._commits.find(first_id)
            while index < len(self._commits) and len(found) < limit:
                record = self._commits.record(index)
                if record.previous_id >= last_id:
                    break
                if record.sums.blocks:
                    found.append(record)
                index += 1
        return found

    def numbered(self, number: int, limit: int) -> Sequence[CommitRecord]:
        """At most *limit* commits from *number* on, fences as well; from the first one that is known on."""
        with self._lock:
            start = max(number - self._commits.start, 0)
            return [self._commits.record(index) for index in range(start, min(start + limit, len(self._commits)))]

    def refresh(self) -> ChainEnd:
        """Follow the commits to their end. Raises :class:`~millstream.log.errors.DamagedLogError`.

        What was read counts only if the layout, looked at afterwards, leaves its name alone. A damaged head in the
        middle is a commit whose ids follow from its neighbours; at the end it is an error.
        """
        with self._refreshing:
            follower = CommitFollower(self._reader)
            begun, self._peeked = self._peeked, []
            while True:
                with self._lock:
                    number, is_cold = self._last.number + 1, not len(self._commits)
                if begun and _number(begun[0]) != number:
                    begun = []
                more, is_end = follower.follow(number + len(begun), is_cold=is_cold and not begun)
                layout = self._layouts.refresh()
                damaged = self._accept([*begun, *more], layout, number)
                if damaged is None:
                    follower, begun = CommitFollower(self._reader), []
                elif not is_end:
                    begun = damaged  # the commit after them says where they end
                elif damaged:
                    raise damaged[0].error
                else:
                    return self.end

    def peek(self) -> bool:
        """Whether there may be more commits than are known, by one request.

        The next commit may be missing because it was trimmed: therefore each :data:`PEEKS` calls one is True.
        """
        with self._refreshing:
            self._peeks = (self._peeks + 1) % PEEKS
            number = self.end.number + 1
            self._peeked = self._reader.read_side_by_side([number], NEAR_BYTES) if self._peeks else []
            return bool(self._peeked) or not self._peeks

    def append(self, commit: CommitObject) -> None:
        """Add *commit*, which was created and checked, unless a refresh has added it meanwhile."""
        with self._lock:
            if commit.head.number == self._last.number + 1:
                self._add(commit)

    def cut(self) -> None:
        """Forget what lies below the start of the newest layout."""
        with self._lock:
            self._cut(self._layouts.newest)

    def oldest(self, below: int, max_bytes: int) -> tuple[int, int]:
        """Where commits begin after those that end below the id *below* and have about *max_bytes*, and these bytes.

        The newest commit stays, and so does a damaged one whose digest is unknown; zeros where nothing is to go.
        """
        start = freed = total = 0
        with self._lock:
            for index in range(len(self._commits) - 1):
                record = self._commits.record(index)
                if record.last_id >= below or (total and total + record.sums.bytes > max_bytes):
                    break
                total += record.sums.bytes
                if record.digest:
                    start, freed = record.number + 1, total
        return start, freed

    def layout_from(self, number: int) -> Layout | None:
        """The layout after the newest, with which commits begin at *number*; None where they do already."""
        with self._lock:
            base = self._base
            if number <= base.start:
                return None
            producers = dict(base.producers)
            for index in range(number - base.start):
                last = self._commits.record(index)
                _note_sequence(producers, last)
            return Layout(
                version=base.version + 1,
                start=number,
                previous=last.digest,
                epoch=last.epoch,
                last_id=last.last_id,
                received_at=last.received_at,
                producers=producers,
            )

    def _accept(
        self, found: Sequence[CommitObject | DamagedHead], layout: Layout, number: int
    ) -> Sequence[DamagedHead] | None:
        """Add the commits that were *found* from *number* on; None where *layout* says to begin again.

        Returns the last of them that are damaged: only the commit after them can say where they end.
        """
        with self._lock:
            if self._last.number + 1 < layout.start:
                self._reset(layout)
                return None
            self._cut(layout)
            damaged: list[DamagedHead] = []
            for commit in found[self._last.number + 1 - number :]:
                if isinstance(commit, DamagedHead):
                    damaged.append(commit)
                else:
                    self._bridge(damaged, commit)
                    self._add(commit)
                    damaged = []
            return damaged

    def _cut(self, layout: Layout) -> None:
        if layout.start > self._last.number + 1:
            return  # the next refresh begins there
        if layout.version > self._base.version:
            self._commits.drop(layout.start - self._base.start)
            self._base = layout

    def _bridge(self, damaged: Sequence[DamagedHead], after: CommitObject) -> None:
        """Add commits whose heads are *damaged*: *after*, which comes next, says where the last of them ends.

        Of several, the last one counts for the ids of all.
        """
        for commit in damaged:
            end, is_last = self._last, commit is damaged[-1]
            last_id = after.head.previous_id if is_last else end.last_id
            self._put(
                CommitRecord(
                    commit.number,
                    end.epoch if after.head.is_fence else after.head.epoch,
                    end.last_id,
                    last_id,
                    end.received_at,
                    after.head.previous if is_last else b"",
                    "",
                    None,
                    BlockStatistics(blocks=1, bytes=PREFIX.size) if last_id > end.last_id else BlockStatistics(),
                    is_damaged=True,
                )
            )

    def _add(self, commit: CommitObject) -> None:
        check_link(self._last, commit)
        head = commit.head
        self._put(
            CommitRecord(
                head.number,
                head.epoch,
                head.previous_id,
                head.last_id,
                head.received_at,
                commit.digest,
                head.producer,
                head.sequence,
                sum_blocks(commit),
            )
        )

    def _put(self, record: CommitRecord) -> None:
        self._commits.add(record)
        self._last = end_of(record)
        _note_sequence(self._producers, record)


def _number(commit: CommitObject | DamagedHead) -> int:
    return commit.number if isinstance(commit, DamagedHead) else commit.head.number


def end_of(record: CommitRecord) -> ChainEnd:
    """The end of the log whose last commit is that of *record*."""
    return ChainEnd(record.number, record.epoch, record.digest, record.last_id, record.received_at)


def check_link(end: ChainEnd, commit: CommitObject) -> None:
    """Raise :class:`~millstream.log.errors.DamagedLogError` where *commit* does not continue what ends with *end*."""
    head = commit.head
    where = commit_text(head.log, head.number)
    if (head.previous, head.previous_id) != (end.digest, end.last_id) or head.number != end.number + 1:
        raise DamagedLogError(
            f"{where} does not continue commit {end.number}: one of the two objects was replaced. {_COMPARE}"
        )
    if head.epoch < end.epoch or (head.epoch > end.epoch and not head.is_fence):
        raise DamagedLogError(f"{where} has epoch {head.epoch}, but the commit before it has {end.epoch}. {_COMPARE}")
    expected = head.previous_id + 1
    for block in head.blocks:
        if block.last_id < block.first_id:
            raise DamagedLogError(
                f"{where} has a block from id {block.first_id} to id {block.last_id}, which is less. {ADVICE}"
            )
        if block.first_id != expected:
            raise DamagedLogError(f"{where} has a block that begins at id {block.first_id}, not {expected}. {ADVICE}")
        expected = block.last_id + 1
    if expected != head.last_id + 1:
        raise DamagedLogError(f"{where} ends at id {head.last_id}, but its blocks end at {expected - 1}. {ADVICE}")


def sum_blocks(commit: CommitObject, first_id: int = 1) -> BlockStatistics:
    """The totals of the blocks of *commit*, from *first_id* on."""
    blocks = [block for block in commit.head.blocks if block.last_id >= first_id]
    if not blocks:
        return BlockStatistics()
    return BlockStatistics(
        first_id=blocks[0].first_id,
        last_id=blocks[-1].last_id,
        count=blocks[-1].last_id - blocks[0].first_id + 1,
        blocks=len(blocks),
        bytes=sum(block.size for block in blocks),
        min_event_time=min(block.min_event_time for block in blocks),
        max_event_time=max(block.max_event_time for block in blocks),
        min_received_at=min(block.min_received_at for block in blocks),
        max_received_at=max(block.max_received_at for block in blocks),
    )


def _note_sequence(producers: dict[str, ProducerSequence], record: CommitRecord) -> None:
    if record.sequence is not None:
        before = producers.get(record.producer)
        producers[record.producer] = ProducerSequence(record.sequence, 1 if before is None else before.commits + 1)
