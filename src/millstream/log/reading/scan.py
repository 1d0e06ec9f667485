"""Reading the blocks of a log in order, checked, and cutting them into batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log.backend import Backend, StoredBlock
from millstream.log.batch import Batch, BlockGroup
from millstream.log.block import Block
from millstream.log.block_header import BlockError, log_hash
from millstream.log.errors import CorruptBlockError, DamagedLogError, LogInputError, MissingBlockError
from millstream.log.gap import Gap, Gaps, is_wanted
from millstream.log.ids import IdRange

FETCH_BYTES = 4 << 20
_SMALL = 4096, 128 << 10  # messages, raw bytes; blocks below both are joined into larger batches …
_JOINED = 65_536, 1 << 20  # … of at most this many messages and raw bytes, since joining copies


def scan_blocks(backend: Backend, log: str, ids: IdRange, first_id: int = 1) -> Iterator[Block | Gap]:
    """The blocks that hold *ids*, in order, with a gap wherever ids have none; all *ids* are accounted for.

    What lies below the low-water mark *first_id* is a gap, whether its blocks are there still or not. The next few MiB
    are fetched while these are used.
    """
    expected = ids.first
    if expected < first_id and len(ids):
        yield Gap(log, IdRange(expected, min(first_id - 1, ids.last)), "trimmed")
        expected = first_id
    while expected <= ids.last:
        last = ids.last
        with contextlib.closing(_stored(backend, log, IdRange(expected, ids.last))) as found:
            for block in found:
                if block.first_id > expected:
                    last = block.first_id - 1
                    break
                yield _opened(log, block)
                expected = block.last_id + 1
        if expected <= last:
            gap = _hole(backend, log, IdRange(expected, last))
            yield gap
            expected = gap.last_id + 1


def _stored(backend: Backend, log: str, ids: IdRange) -> Generator[StoredBlock]:
    """The stored blocks from *ids* on, until they are all there or there are no more."""
    stored = _fetch(backend, log, ids)
    if not stored or stored[-1].last_id >= ids.last:
        yield from stored
        return
    own: list[int] = []
    thread = ThreadPoolExecutor(1, "millstream-log-read-ahead", initializer=lambda: own.append(threading.get_ident()))
    try:
        while stored:
            rest = IdRange(stored[-1].last_id + 1, ids.last)
            ahead = thread.submit(_fetch, backend, log, rest) if len(rest) else None
            yield from stored
            stored = ahead.result() if ahead is not None else []
    finally:  # what was dropped half-way may be collected in the very thread that reads ahead
        thread.shutdown(wait=threading.get_ident() not in own)


def _fetch(backend: Backend, log: str, ids: IdRange) -> Sequence[StoredBlock]:
    return backend.read(log, ids.first, ids.last, max_bytes=FETCH_BYTES)


def _hole(backend: Backend, log: str, ids: IdRange) -> Gap:
    """The gap over *ids*, which the store has no block of, or over their beginning where only that was trimmed."""
    first_id = backend.head(log).first_id
    if ids.first < first_id:
        return Gap(log, IdRange(ids.first, min(ids.last, first_id - 1)), "trimmed")
    return Gap(log, ids, "missing", error=MissingBlockError(log, ids.first, ids.last))


def _opened(log: str, stored: StoredBlock) -> Block | Gap:
    try:
        return open_block(log, stored)
    except CorruptBlockError as error:
        return Gap(log, IdRange(stored.first_id, stored.last_id), "corrupt", error=error)


def open_block(log: str, stored: StoredBlock) -> Block:
    """The checked block of *stored*. Raises :class:`CorruptBlockError`."""
    try:
        block = Block(stored.data)
    except BlockError as error:
        raise CorruptBlockError(log, stored.first_id, str(error)) from error
    head = block.header
    if (head.first_id, head.last_id) != (stored.first_id, stored.last_id):
        reason = (
            f"it contains ids {head.first_id} to {head.last_id}, but the store lists it under {stored.first_id} to "
            f"{stored.last_id}"
        )
        raise CorruptBlockError(log, stored.first_id, reason)
    if head.log != log_hash(log):
        raise CorruptBlockError(log, stored.first_id, "the block belongs to another log")
    return block


def cut_batches(
    blocks: Iterable[Block | Gap],
    ids: IdRange,
    *,
    log: str,
    max_messages: int,
    columns: Sequence[str] | None = None,
    gaps: Gaps = "trimmed",
) -> Iterator[Batch]:
    """Batches of at most *max_messages* that hold *ids*: large blocks are cut, runs of small ones are joined.

    Of what is missing, *gaps* are given as :class:`Gap` and all else is raised, after all that comes before it. Raises
    :class:`LogInputError` for *columns* that a message has not.
    """
    _check_columns(columns)
    return _cut(blocks, ids, log=log, max_messages=max_messages, columns=columns, gaps=gaps)


def _cut(
    blocks: Iterable[Block | Gap],
    ids: IdRange,
    *,
    log: str,
    max_messages: int,
    columns: Sequence[str] | None,
    gaps: Gaps,
) -> Iterator[Batch]:
    begin = ids.first
    for group in _groups(blocks, max_messages):
        if isinstance(group, Gap):
            if not is_wanted(group, gaps):
                raise group.error
            yield group.within(IdRange(begin, ids.last), columns)
            begin = group.last_id + 1
            continue
        run = BlockGroup(log, group)
        last = min(ids.last, run.ids.last)
        for first in range(max(begin, run.ids.first), last + 1, max_messages):
            yield Batch(run, IdRange(first, min(last, first + max_messages - 1)), columns)
        begin = last + 1


def _check_columns(columns: Sequence[str] | None) -> None:
    unknown = set(columns or ()) - set(MESSAGE_SCHEMA.names)
    if unknown:
        raise LogInputError(
            f"unknown columns {', '.join(sorted(unknown))}: a message has {', '.join(MESSAGE_SCHEMA.names)}"
        )


def _groups(blocks: Iterable[Block | Gap], max_messages: int) -> Iterator[list[Block] | Gap]:
    """Runs of small blocks that make no more than *max_messages*, and each large block and each gap alone."""
    group: list[Block] = []
    count = size = 0
    damage: DamagedLogError | None = None
    try:
        for block in blocks:
            if isinstance(block, Gap) or not _is_small(block):
                if group:
                    yield group
                yield block if isinstance(block, Gap) else [block]
                group, count, size = [], 0, 0
                continue
            count, size = count + block.header.count, size + block.header.raw_bytes
            if group and (count > min(max_messages, _JOINED[0]) or size > _JOINED[1]):
                yield group
                group, count, size = [], block.header.count, block.header.raw_bytes
            group.append(block)
    except DamagedLogError as error:
        damage = error
    if group:
        yield group
    if damage is not None:
        raise damage


def _is_small(block: Block) -> bool:
    return block.header.count < _SMALL[0] and block.header.raw_bytes < _SMALL[1]
