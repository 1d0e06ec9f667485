"""Reading blocks where another process has located them: one request for what lies side by side in an object."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from millstream.log.backend import StoredBlock
from millstream.log.block import Block
from millstream.log.block_location import BlockLocation
from millstream.log.errors import CorruptBlockError
from millstream.log.reading.scan import open_block

ReadObject = Callable[[str, int, int], bytes | None]
"""Reads so many bytes of an object from a position on; None where there is no such object."""

SIDE_BY_SIDE = 8
"""How many requests are under way at once, at most."""

AHEAD_BYTES = 16 << 20
"""How much is read ahead, unless the blocks of one object are larger."""

Span = list[BlockLocation]


def read_located(log: str, locations: Sequence[BlockLocation], read: ReadObject) -> Generator[Block]:
    """The blocks at *locations*, in order and checked; what comes next is read while these are used.

    It ends before the first block that is not there as it was located: the log was trimmed, or has moved it, or it is
    damaged. Only the log can tell. Raises what *read* raises.
    """
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="located-blocks") as pool:
        for span, data in _read_ahead(pool, locations, read):
            for location in span:
                block = _checked(log, location, data[location.start - span[0].start :][: location.size])
                if block is None:
                    return
                yield block


def _read_ahead(
    pool: ThreadPoolExecutor, locations: Sequence[BlockLocation], read: ReadObject
) -> Iterator[tuple[Span, bytes]]:
    """The bytes of each span; nothing of an object that is not there."""
    spans = deque(_spans(locations))
    under_way: deque[tuple[Span, Future[bytes | None]]] = deque()
    ahead = 0
    while spans or under_way:
        while spans and (not under_way or (len(under_way) < SIDE_BY_SIDE and ahead + _size(spans[0]) <= AHEAD_BYTES)):
            span = spans.popleft()
            ahead += _size(span)
            under_way.append((span, pool.submit(read, span[0].name, span[0].start, _size(span))))
        span, answer = under_way.popleft()
        ahead -= _size(span)
        yield span, answer.result() or b""


def _spans(locations: Sequence[BlockLocation]) -> Iterator[Span]:
    """Runs of blocks that lie side by side in one object."""
    span: Span = []
    for location in locations:
        if span and (span[-1].name, span[-1].start + span[-1].size) != (location.name, location.start):
            yield span
            span = []
        span.append(location)
    if span:
        yield span


def _size(span: Span) -> int:
    return span[-1].start + span[-1].size - span[0].start


def _checked(log: str, location: BlockLocation, data: bytes) -> Block | None:
    """The block in *data*, if it is the one that was located."""
    if location.sha256 and hashlib.sha256(data).digest() != location.sha256:
        return None
    try:
        return open_block(log, StoredBlock(location.first_id, location.last_id, data))
    except CorruptBlockError:
        return None
