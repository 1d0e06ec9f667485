"""A queue in the document's layout, as the original and as we see it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.log import Log, open_store
from millstream.log.backends.mysql import parse_address
from support.nerve_original import NAME, OPTIONS, SPEC, OpenOriginal, OriginalQueue


@pytest.fixture
def url(queues: str) -> str:
    """A database for queues of three tables."""
    return f"{queues}?{OPTIONS}"


@pytest.fixture
def open_original(queues: str) -> Iterator[OpenOriginal]:
    """Opens the queue as the original does."""
    opened: list[OriginalQueue] = []

    def open_one(shards: int = 3, pointers: int = 2) -> OriginalQueue:
        opened.append(OriginalQueue(parse_address(queues), NAME, shards, pointers))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def original(open_original: OpenOriginal) -> OriginalQueue:
    """The queue with the 100 packets ``1`` to ``100`` of an original publisher."""
    queue = open_original()
    queue.send([b"%d" % n for n in range(1, 101)])
    return queue


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """The queue as a log; make the original's tables first where they are wanted."""
    with open_store(url) as store:
        yield store.log(SPEC)
