"""Append requests that have their ids and wait for a commit."""

from __future__ import annotations

from collections import deque

from millstream.log.errors import LogInputError
from millstream.log.ids import MAX_ID, IdRange
from millstream.log.spec import LogSpec
from millstream.log.writing.append_request import AppendRequest

COMMIT_BYTES = 8 << 20
"""About how much one commit takes at most, unless a single request is larger."""

PENDING_BYTES = 64 << 20
"""How much may wait for a commit before those who append have to wait (back-pressure)."""


class PendingRequests:
    """The requests of one log that no commit has taken, in the order of their ids. Not thread-safe.

    ``last_id`` and ``sequence`` are the last ones that were given; ``bytes`` and ``messages`` are those of all
    ``requests``. ``since`` is when the first of them began to wait (monotonic seconds). They are ``unattended`` where
    no thread may be waiting for one of them, so that the scheduler thread has to see to them.
    """

    __slots__ = ("_spec", "bytes", "last_id", "messages", "requests", "sequence", "since", "unattended")

    def __init__(self, spec: LogSpec, *, last_id: int, sequence: int) -> None:
        self._spec = spec
        self.requests: deque[AppendRequest] = deque()
        self.bytes = 0
        self.messages = 0
        self.since = 0.0
        self.unattended = False
        self.last_id = last_id
        self.sequence = sequence

    def has_room(self, request: AppendRequest) -> bool:
        """Whether *request* may wait too. A single one always may, however large it is."""
        return not self.requests or self.bytes + request.size <= PENDING_BYTES

    def is_full(self) -> bool:
        """Whether they fill a block, so that waiting for more gains nothing."""
        return self.bytes >= self._spec.block_bytes or self.messages >= self._spec.block_messages

    def add(self, request: AppendRequest, now: float) -> IdRange | None:
        """Give *request* its ids; None where its sequence was given before. *now* is in monotonic seconds.

        Raises :class:`LogInputError` where the log has no ids left.
        """
        if request.sequence is not None and request.sequence <= self.sequence:
            return None
        ids = IdRange(self.last_id + 1, self.last_id + request.count)
        if not request.count:
            return ids
        if ids.last > MAX_ID:
            raise LogInputError(
                f"log {self._spec.name!r} is full, because there is no id after {self.last_id}: start a new log"
            )
        if not self.requests:
            self.since = now
        self.last_id = ids.last
        self.sequence = request.sequence or self.sequence
        self.bytes += request.size
        self.messages += request.count
        self.requests.append(request)  # comes last: a signal can interrupt only once a call has returned
        return ids

    def take(self, max_messages: int) -> list[AppendRequest]:
        """Take out the requests of the next commit: the oldest, within :data:`COMMIT_BYTES` and *max_messages*.

        The first one is taken whatever its size, and the last one may exceed *max_messages*.
        """
        if self.bytes <= COMMIT_BYTES and self.messages <= max_messages:
            taken = list(self.requests)
            self.clear()
            return taken
        taken = []
        size = count = 0
        while self.requests and not (taken and (size + self.requests[0].size > COMMIT_BYTES or count >= max_messages)):
            taken.append(self.requests.popleft())
            size += taken[-1].size
            count += taken[-1].count
        self.bytes -= size
        self.messages -= count
        self.unattended = self.unattended and bool(self.requests)
        return taken

    def clear(self) -> None:
        """Drop all requests. Ids and sequences that were given stay given."""
        self.requests.clear()
        self.bytes = self.messages = 0
        self.unattended = False
