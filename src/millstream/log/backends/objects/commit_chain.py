"""The commits of one log as this process knows them: found by their numbers, and followed to the end."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from millstream.log.backend import BlockStatistics
from millstream.log.backends.objects.commit_object import ADVICE, CommitObject
from millstream.log.backends.objects.commit_reader import CommitReader
from millstream.log.backends.objects.layouts import Layout, Layouts, ProducerSequence
from millstream.log.errors import DamagedLogError


class CommitRecord(msgspec.Struct, frozen=True, gc=False):
    """What is kept in memory of each commit."""

    number: int
    epoch: int
    previous_id: int
    last_id: int
    received_at: int
    digest: bytes
    producer: str
    sequence: int | None
    sums: BlockStatistics


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
        self._reset(layouts.newest)

    def _reset(self, layout: Layout) -> None:
        self._base = layout
        self._records: list[CommitRecord] = []
        self._producers = dict(layout.producers)

    @property
    def end(self) -> ChainEnd:
        """The last commit that is known."""
        with self._lock:
            return self._end()

    def producer(self, name: str) -> ProducerSequence | None:
        """What the producer of that name has sent."""
        with self._lock:
            return self._producers.get(name)

    def producers(self) -> dict[str, ProducerSequence]:
        """What each producer has sent."""
        with self._lock:
            return dict(self._producers)

    def records(self, first_id: int, last_id: int, limit: int) -> Sequence[CommitRecord]:
        """The first *limit* commits with blocks that hold ids from *first_id* to *last_id*."""
        found: list[CommitRecord] = []
        with self._lock:
            at = bisect_left(self._records, first_id, key=lambda record: record.last_id)
            while at < len(self._records) and len(found) < limit and self._records[at].previous_id < last_id:
                if self._records[at].sums.blocks:
                    found.append(self._records[at])
                at += 1
        return found

    def all_records(self) -> Sequence[CommitRecord]:
        """All commits, fences as well."""
        with self._lock:
            return list(self._records)

    def refresh(self) -> ChainEnd:
        """Follow the commits to their end. Raises :class:`~millstream.log.errors.DamagedLogError`.

        What was read counts only if the layout, looked at afterwards, leaves its name alone.
        """
        with self._refreshing:
            while True:
                with self._lock:
                    number, is_cold = self._end().number + 1, not self._records
                found = self._reader.follow(number, is_cold=is_cold)
                if self._accept(found, self._layouts.refresh(), number):
                    return self.end

    def append(self, commit: CommitObject) -> None:
        """Add *commit*, which was created and checked, unless a refresh has added it meanwhile."""
        with self._lock:
            if commit.head.number == self._end().number + 1:
                self._add(commit)

    def cut(self) -> None:
        """Forget what lies below the start of the newest layout."""
        with self._lock:
            self._cut(self._layouts.newest)

    def layout_from(self, number: int) -> Layout | None:
        """The layout after the newest, with which commits begin at *number*; None where they do already."""
        with self._lock:
            base = self._base
            if number <= base.start:
                return None
            before = self._records[: number - base.start]
            last = before[-1]
            producers = dict(base.producers)
            for record in before:
                _note_sequence(producers, record)
            return Layout(
                version=base.version + 1,
                start=number,
                previous=last.digest,
                epoch=last.epoch,
                last_id=last.last_id,
                received_at=last.received_at,
                producers=producers,
            )

    def _accept(self, found: Sequence[CommitObject], layout: Layout, number: int) -> bool:
        """Add the commits that were *found* from *number* on; False where *layout* says to begin again."""
        with self._lock:
            if self._end().number + 1 < layout.start:
                self._reset(layout)
                return False
            self._cut(layout)
            for commit in found[self._end().number + 1 - number :]:
                self._add(commit)
            return True

    def _cut(self, layout: Layout) -> None:
        if layout.start > self._end().number + 1:
            return  # the next refresh begins there
        if layout.version > self._base.version:
            self._records = self._records[layout.start - self._base.start :]
            self._base = layout

    def _end(self) -> ChainEnd:
        if not self._records:
            base = self._base
            return ChainEnd(base.start - 1, base.epoch, base.previous, base.last_id, base.received_at)
        last = self._records[-1]
        return ChainEnd(last.number, last.epoch, last.digest, last.last_id, last.received_at)

    def _add(self, commit: CommitObject) -> None:
        head, end = commit.head, self._end()
        check_link(end, commit)
        record = CommitRecord(
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
        self._records.append(record)
        _note_sequence(self._producers, record)


def check_link(end: ChainEnd, commit: CommitObject) -> None:
    """Raise :class:`~millstream.log.errors.DamagedLogError` where *commit* does not continue what ends with *end*."""
    head = commit.head
    where = f"commit {head.number} of log {head.log!r}"
    if (head.previous, head.previous_id) != (end.digest, end.last_id) or head.number != end.number + 1:
        raise DamagedLogError(f"{where} does not continue commit {end.number}: one of them was replaced. {ADVICE}")
    if head.epoch < end.epoch or (head.epoch > end.epoch and not head.is_fence):
        raise DamagedLogError(f"{where} has epoch {head.epoch} after epoch {end.epoch}. {ADVICE}")
    expected = head.previous_id + 1
    for block in head.blocks:
        if block.first_id != expected or block.last_id < block.first_id:
            raise DamagedLogError(f"{where} has a block that begins at id {block.first_id}, not {expected}. {ADVICE}")
        expected = block.last_id + 1
    if expected != head.last_id + 1:
        raise DamagedLogError(f"{where} ends at id {head.last_id}, but its blocks end at {expected - 1}. {ADVICE}")


def sum_blocks(commit: CommitObject, first_id: int = 1) -> BlockStatistics:
    """What the blocks of *commit* add up to that hold *first_id* and what comes after it."""
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
