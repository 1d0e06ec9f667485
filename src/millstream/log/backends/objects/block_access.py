"""Blocks of one log by their ids: which commits hold them, their index, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from millstream.log.backend import BlockStatistics, StoredBlock
from millstream.log.backends.objects.commit_chain import ChainEnd, check_link, end_of, sum_blocks
from millstream.log.backends.objects.commit_columns import CommitRecord
from millstream.log.backends.objects.commit_object import (
    ADVICE,
    PREFIX,
    BlockEntry,
    CommitHeader,
    CommitObject,
    commit_text,
)
from millstream.log.backends.objects.commit_reader import DamagedHead, is_block
from millstream.log.backends.objects.object_log import ObjectLog
from millstream.log.block import Block
from millstream.log.block_header import BlockError
from millstream.log.errors import DamagedLogError

_PART = 64
"""How many commits are looked at together."""

Answer = TypeVar("Answer")
Located = tuple[CommitObject, BlockEntry]


class BlockAccess:
    """The blocks of *log*, as far as its commits are known.

    A commit whose head is damaged counts as one damaged block of all its ids, without a checksum.
    """

    def __init__(self, log: ObjectLog) -> None:
        self._log = log
        self._misses = False

    def complete(self, collect: Callable[[], Answer]) -> Answer:
        """The result of *collect*; repeated if a commit was missing because it was trimmed meanwhile."""
        while True:
            start, self._misses = self._log.layouts.newest.start, False
            found = collect()
            if not self._misses:
                return found
            self._log.chain.refresh()
            if self._log.layouts.newest.start == start:
                return found

    def records(self, first_id: int, last_id: int = 2**63) -> Iterator[CommitRecord]:
        """The commits that hold blocks with ids from *first_id* to *last_id*."""
        return (record for part in self._parts(first_id, last_id) for record in part)

    def entries(self, first_id: int, last_id: int, max_bytes: int = 2**63) -> Iterator[Located]:
        """The blocks that hold *first_id* to *last_id*, with their commits; a commit that is missing has none.

        Heads of about *max_bytes* of blocks are read side by side.
        """
        for part in self._parts(first_id, last_id):
            for records in _cut(part, max_bytes):
                for commit in self._commits(records):
                    blocks = commit.head.blocks
                    held = (one for one in blocks if one.last_id >= first_id and one.first_id <= last_id)
                    yield from ((commit, one) for one in held)

    def _commits(self, records: Sequence[CommitRecord]) -> Iterator[CommitObject]:
        whole = [record for record in records if not record.is_damaged]
        heads = self._log.reader.heads([(record.number, record.digest) for record in whole])
        found = {record.number: commit for record, commit in zip(whole, heads, strict=True)}
        for record in records:
            commit = found.get(record.number)
            if isinstance(commit, CommitObject):
                yield commit
            elif isinstance(commit, DamagedHead) or record.is_damaged:
                yield _unreadable(self._log.names.log, record)
            else:
                self._misses = True

    def _parts(self, first_id: int, last_id: int) -> Iterator[Sequence[CommitRecord]]:
        while part := self._log.chain.records(first_id, last_id, _PART):
            yield part
            first_id = part[-1].last_id + 1

    def read(self, first_id: int, last_id: int, max_bytes: int) -> Sequence[StoredBlock]:
        """As :meth:`millstream.log.backend.Backend.read`.

        Where bytes are missing or not those of the head, their commit may have been trimmed since: then what is left
        is read again.
        """

        def collect() -> tuple[list[Located], Sequence[bytes | None]]:
            wanted = _within(self.entries(first_id, last_id, max_bytes), max_bytes)
            found = self._log.reader.blocks(wanted)
            pairs = zip(wanted, found, strict=True)
            self._misses |= not all(data is not None and is_block(block, data) for (_, block), data in pairs)
            return wanted, found

        wanted, found = self.complete(collect)
        return [
            StoredBlock(block.first_id, block.last_id, _as_found(block, data))
            for (_, block), data in zip(wanted, found, strict=True)
            if data is not None
        ]

    def first_since(self, time: int, first_id: int) -> BlockEntry | None:
        """The first block that holds *first_id* or what comes after it and was received at *time* or later."""
        for record in self.records(first_id):
            if (record.sums.max_received_at or 0) < time:
                continue
            for _, block in self.entries(max(first_id, record.previous_id + 1), record.last_id):
                if block.max_received_at >= time:
                    return block
        return None

    def sums(self, first_id: int) -> Sequence[BlockStatistics]:
        """The totals of the blocks of each commit, from *first_id* on."""
        found = []
        for record in self.records(first_id):
            if record.previous_id + 1 >= first_id:
                found.append(record.sums)
            else:
                found += [sum_blocks(commit, first_id) for commit in self._commits([record])]
        return found

    def check(self) -> Sequence[str]:
        """Faults of the heads of the commits and of their chain, in words."""
        end = self._log.chain.refresh()
        problems: list[tuple[int, str]] = []
        before: ChainEnd | None = None
        number = 0
        while records := self._log.chain.numbered(number, _PART):
            commits = self._log.reader.read_all([record.number for record in records])
            for record, commit in zip(records, commits, strict=True):
                problem = _problem(self._log.names.log, record, commit, before)
                problems += [(record.number, problem)] if problem else []
                before = end_of(record)
            number = records[-1].number + 1
        start = self._log.layouts.refresh().start if problems else 0
        found = [problem for number, problem in problems if number >= start]  # others were trimmed meanwhile
        if missing := self._log.missing_after(end):
            found.append(f"{missing}. {ADVICE}")
        return found


def _problem(
    log: str, record: CommitRecord, commit: CommitObject | DamagedHead | None, before: ChainEnd | None
) -> str | None:
    """Faults of the *commit* of *log* that was read for *record*, after the commit *before*."""
    if commit is None:
        return f"{commit_text(log, record.number)} is missing from the bucket. {ADVICE}"
    if isinstance(commit, DamagedHead):
        return str(commit.error)
    try:
        if before is not None and before.digest:
            check_link(before, commit)
    except DamagedLogError as error:
        return str(error)
    return None


def _unreadable(log: str, record: CommitRecord) -> CommitObject:
    """A commit in the place of that of *record*, whose head is damaged: one block, which no bytes fit."""
    sums = record.sums
    block = BlockEntry(
        record.previous_id + 1,
        record.last_id,
        0,
        PREFIX.size,
        sums.min_event_time or 0,
        sums.max_event_time or 0,
        sums.min_received_at or 0,
        sums.max_received_at or 0,
        b"",
    )
    head = CommitHeader(
        log=log,
        number=record.number,
        epoch=record.epoch,
        nonce="",
        previous=b"",
        previous_id=record.previous_id,
        last_id=record.last_id,
        received_at=record.received_at,
        blocks=(block,),
    )
    return CommitObject(head, record.digest, 0)


def _cut(records: Sequence[CommitRecord], max_bytes: int) -> Iterator[Sequence[CommitRecord]]:
    """*records* in parts whose blocks have about *max_bytes*."""
    part: list[CommitRecord] = []
    size = 0
    for record in records:
        part.append(record)
        size += record.sums.bytes
        if size >= max_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def _within(blocks: Iterator[Located], max_bytes: int) -> list[Located]:
    """The first of *blocks*: one at least, *max_bytes* at most."""
    found: list[Located] = []
    size = 0
    for commit, block in blocks:
        size += block.size
        if found and size > max_bytes:
            break
        found.append((commit, block))
    return found


def _as_found(block: BlockEntry, data: bytes) -> bytes:
    """*data*; nothing where it is a block, but not the one that was written, so that no process takes it for that."""
    if is_block(block, data):
        return data
    try:
        Block(data)
    except BlockError:
        return data
    return b""
