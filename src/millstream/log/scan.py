"""Reading the blocks of a log in order, checked, and cutting them into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.log.backend import Backend, StoredBlock
from millstream.log.batch import Batch
from millstream.log.block import Block, BlockError, name_hash
from millstream.log.errors import CorruptBlockError, MissingBlockError
from millstream.log.ids import IdRange

FETCH_BYTES = 4 << 20
_SMALL = 4096  # messages; blocks below it are joined into larger batches


def scan_blocks(backend: Backend, log: str, ids: IdRange) -> Iterator[Block]:
    """The blocks that hold *ids*, in order, none left out.

    Raises :class:`CorruptBlockError`, :class:`MissingBlockError`.
    """
    expected = ids.first
    while expected <= ids.last:
        stored = backend.read(log, expected, ids.last, max_bytes=FETCH_BYTES)
        if not stored:
            raise MissingBlockError(log, expected, ids.last)
        for block in stored:
            if block.first_id > expected:
                raise MissingBlockError(log, expected, block.first_id - 1)
            yield open_block(log, block)
            expected = block.last_id + 1


def open_block(log: str, stored: StoredBlock) -> Block:
    """The checked block of *stored*. Raises :class:`CorruptBlockError`."""
    try:
        block = Block(stored.data)
    except BlockError as error:
        raise CorruptBlockError(log, stored.first_id, str(error)) from error
    head = block.header
    if (head.first_id, head.last_id) != (stored.first_id, stored.last_id):
        reason = (
            f"it holds ids {head.first_id} to {head.last_id} and is filed under {stored.first_id} to {stored.last_id}"
        )
        raise CorruptBlockError(log, stored.first_id, reason)
    if head.log != name_hash(log):
        raise CorruptBlockError(log, stored.first_id, "it is a block of another log")
    return block


def cut_batches(
    log: str, blocks: Iterator[Block], ids: IdRange, *, max_messages: int, columns: Sequence[str] | None = None
) -> Iterator[Batch]:
    """Batches of at most *max_messages* that hold *ids*: large blocks are cut, runs of small ones are joined."""
    group: list[Block] = []
    for block in blocks:
        first = group[0].header.first_id if group else block.header.first_id
        if group and (block.header.count >= _SMALL or block.header.last_id - first >= max_messages):
            yield from _cut(log, group, ids, max_messages, columns)
            group = []
        group.append(block)
        if block.header.count >= _SMALL:
            yield from _cut(log, group, ids, max_messages, columns)
            group = []
    if group:
        yield from _cut(log, group, ids, max_messages, columns)


def _cut(
    log: str, blocks: list[Block], ids: IdRange, max_messages: int, columns: Sequence[str] | None
) -> Iterator[Batch]:
    first = max(ids.first, blocks[0].header.first_id)
    last = min(ids.last, blocks[-1].header.last_id)
    while first <= last:
        part = IdRange(first, min(last, first + max_messages - 1))
        yield Batch(log, blocks, part, columns)
        first = part.last + 1
