"""Blocks of one log by their ids: which commits hold them, their index, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.log.backend import BlockStatistics, StoredBlock
from millstream.log.backends.objects.commit_chain import ChainEnd, CommitRecord, check_link, sum_blocks
from millstream.log.backends.objects.commit_object import BlockEntry, CommitObject
from millstream.log.backends.objects.commit_reader import is_block
from millstream.log.backends.objects.object_log import ObjectLog
from millstream.log.block import Block, BlockError
from millstream.log.errors import DamagedLogError

_PART = 64
"""How many commits are looked at together."""

Located = tuple[CommitObject, BlockEntry]


class BlockAccess:
    """The blocks of *log*, as far as its commits are known."""

    def __init__(self, log: ObjectLog) -> None:
        self._log = log

    def records(self, first_id: int, last_id: int = 2**63) -> Iterator[CommitRecord]:
        """The commits that hold blocks with ids from *first_id* to *last_id*."""
        return (record for part in self._parts(first_id, last_id) for record in part)

    def entries(self, first_id: int, last_id: int, max_bytes: int = 2**63) -> Iterator[Located]:
        """The blocks that hold *first_id* to *last_id*, with their commits; a commit that is missing has none.

        Heads of about *max_bytes* of blocks are read side by side.
        """
        for part in self._parts(first_id, last_id):
            for records in _cut(part, max_bytes):
                for commit in self._log.reader.heads([(record.number, record.digest) for record in records]):
                    if commit is not None:
                        blocks = commit.head.blocks
                        held = (one for one in blocks if one.last_id >= first_id and one.first_id <= last_id)
                        yield from ((commit, one) for one in held)

    def _parts(self, first_id: int, last_id: int) -> Iterator[Sequence[CommitRecord]]:
        while part := self._log.chain.records(first_id, last_id, _PART):
            yield part
            first_id = part[-1].last_id + 1

    def read(self, first_id: int, last_id: int, max_bytes: int) -> Sequence[StoredBlock]:
        """As :meth:`millstream.log.backend.Backend.read`.

        Where bytes are missing or not those of the head, their commit may have been trimmed since: then what is left
        is read again.
        """
        while True:
            start = self._log.layouts.newest.start
            wanted = _within(self.entries(first_id, last_id, max_bytes), max_bytes)
            found = self._log.reader.blocks(wanted)
            if all(data is not None and is_block(block, data) for (_, block), data in zip(wanted, found, strict=True)):
                break
            self._log.chain.refresh()
            if self._log.layouts.newest.start == start:
                break
        return [
            StoredBlock(block.first_id, block.last_id, _as_found(block, data))
            for (_, block), data in zip(wanted, found, strict=True)
            if data is not None
        ]

    def sums(self, first_id: int) -> Sequence[BlockStatistics]:
        """What the blocks of each commit add up to that hold *first_id* and what comes after it."""
        found = []
        for record in self.records(first_id):
            if record.previous_id + 1 >= first_id:
                found.append(record.sums)
                continue
            commit = self._log.reader.head(record.number, record.digest)
            found.append(BlockStatistics() if commit is None else sum_blocks(commit, first_id))
        return found

    def check(self) -> Sequence[str]:
        """What is wrong with the heads of the commits and with the chain that they form, in words."""
        self._log.chain.refresh()
        problems: list[str] = []
        end: ChainEnd | None = None
        for record in self._log.chain.all_records():
            if record.number < self._log.layouts.newest.start:
                continue
            try:
                commit = self._log.reader.read_head(record.number)
                if commit is None:
                    problems.append(f"commit {record.number} is missing from the bucket")
                elif end is not None:
                    check_link(end, commit)
            except DamagedLogError as error:
                problems.append(str(error))
            end = ChainEnd(record.number, record.epoch, record.digest, record.last_id, record.received_at)
        return problems


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
