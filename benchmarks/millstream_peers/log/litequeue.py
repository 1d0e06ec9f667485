"""litequeue, a queue for Python in an SQLite file: a row a message, taken and finished one by one.

Many senders share a transaction, which its own ``put`` does not do, and the file is synced before they are told. What
is taken and finished is not synced, as is its default. It stores text only, so a byte is one character.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from millstream.bench.log.protocol import Part, QueueLocation
from millstream.core.clock import SystemClock
from millstream_peers.log.grouped import GroupingSender

_READ = 1000
_NAP = 0.001


class LitequeueSender(GroupingSender):
    """Puts messages."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._queue = _open(place)
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        super().close()
        self._queue.close()

    def _commit(self, bodies: list[bytes], first: int) -> None:  # noqa: ARG002 - it has ids of its own
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body.decode("latin-1"))


class LitequeueReceiver:
    """Pops messages and marks them done. It has no numbers that count, so they are counted here."""

    def __init__(self, place: QueueLocation) -> None:
        self._queue = _open(place)
        self._clock, self._nap = SystemClock(), threading.Condition()

    def follow(self, total: int) -> Iterator[Part]:
        last = 0
        while last < total:
            bodies: list[bytes] = []
            while len(bodies) < _READ and (message := self._queue.pop()) is not None:
                self._finish(message)
                bodies.append(message.data.encode("latin-1"))
            if bodies:
                yield range(last + 1, last + len(bodies) + 1), bodies
                last += len(bodies)
            else:
                with self._nap:
                    self._clock.wait(self._nap, _NAP)

    def close(self) -> None:
        self._queue.close()

    def _finish(self, message: Any) -> None:
        if hasattr(message, "claim_id"):  # later versions finish a claim, not a message
            self._queue.done(message.message_id, claim_id=message.claim_id)
        else:
            self._queue.done(message.message_id)


def _open(place: QueueLocation) -> Any:
    from litequeue import LiteQueue  # type: ignore[import-untyped]

    return LiteQueue(place.url, timeout=60)
