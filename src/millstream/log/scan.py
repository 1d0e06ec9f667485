"""Reading the blocks of a log in order, checked, and cutting them into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log.backend import Backend, StoredBlock
from millstream.log.batch import Batch, Run
from millstream.log.block import Block, BlockError, name_hash
from millstream.log.errors import CorruptBlockError, DamagedLogError, LogInputError, MissingBlockError
from millstream.log.ids import IdRange

FETCH_BYTES = 4 << 20
_SMALL = 4096, 128 << 10  # messages, raw bytes; blocks below both are joined into larger batches …
_JOINED = 65_536, 1 << 20  # … of at most so many messages and raw bytes, since joining copies


def scan_blocks(backend: Backend, log: str, ids: IdRange) -> Iterator[Block]:
    """The blocks that hold *ids*, in order, none left out; the next few MiB are fetched while these are used.

    Raises :class:`CorruptBlockError`, :class:`MissingBlockError`.
    """
    if not len(ids):
        return
    stored = _fetch(backend, log, ids)
    if stored[-1].last_id >= ids.last:
        yield from _checked(log, ids.first, stored)
        return
    with ThreadPoolExecutor(1, "millstream-log-read-ahead") as thread:
        while True:
            rest = IdRange(stored[-1].last_id + 1, ids.last)
            ahead = thread.submit(_fetch, backend, log, rest) if len(rest) else None
            yield from _checked(log, ids.first, stored)
            if ahead is None:
                return
            stored, ids = ahead.result(), rest


def _fetch(backend: Backend, log: str, ids: IdRange) -> Sequence[StoredBlock]:
    stored = backend.read(log, ids.first, ids.last, max_bytes=FETCH_BYTES)
    if not stored:
        raise MissingBlockError(log, ids.first, ids.last)
    return stored


def _checked(log: str, expected: int, stored: Sequence[StoredBlock]) -> Iterator[Block]:
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
    """Batches of at most *max_messages* that hold *ids*: large blocks are cut, runs of small ones are joined.

    All that comes before a damage is given before the damage is raised. Raises :class:`LogInputError` for *columns*
    that a message has not.
    """
    _check_columns(columns)
    return _cut(log, blocks, ids, max_messages, columns)


def _cut(
    log: str, blocks: Iterator[Block], ids: IdRange, max_messages: int, columns: Sequence[str] | None
) -> Iterator[Batch]:
    for group in _groups(blocks, max_messages):
        run = Run(log, group)
        last = min(ids.last, run.ids.last)
        for first in range(max(ids.first, run.ids.first), last + 1, max_messages):
            yield Batch(run, IdRange(first, min(last, first + max_messages - 1)), columns)


def _check_columns(columns: Sequence[str] | None) -> None:
    unknown = set(columns or ()) - set(MESSAGE_SCHEMA.names)
    if unknown:
        raise LogInputError(f"a message has no {', '.join(sorted(unknown))}; it has {', '.join(MESSAGE_SCHEMA.names)}")


def _groups(blocks: Iterator[Block], max_messages: int) -> Iterator[list[Block]]:
    """Runs of small blocks that make no more than *max_messages*, and each large block alone."""
    group: list[Block] = []
    count = size = 0
    damage: DamagedLogError | None = None
    try:
        for block in blocks:
            count, size = count + block.header.count, size + block.header.raw_bytes
            if group and (not _is_small(block) or count > min(max_messages, _JOINED[0]) or size > _JOINED[1]):
                yield group
                group, count, size = [], block.header.count, block.header.raw_bytes
            group.append(block)
            if not _is_small(block):
                yield group
                group, count, size = [], 0, 0
    except DamagedLogError as error:
        damage = error
    if group:
        yield group
    if damage is not None:
        raise damage


def _is_small(block: Block) -> bool:
    return block.header.count < _SMALL[0] and block.header.raw_bytes < _SMALL[1]
