"""The reader of a log: batches in order, acknowledgements in any order, a pointer that survives."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from millstream.core.closing import ClosesOnExit
from millstream.log.backend import Head, VersionedValue
from millstream.log.batch import Batch
from millstream.log.consumer_positions import ConsumerPosition, consumer_key, decode_position, encode_position
from millstream.log.errors import FencedError, LogError, LogInputError
from millstream.log.frontier import Frontier
from millstream.log.gap import Gap, Gaps
from millstream.log.ids import IdRange
from millstream.log.reading.scan import cut_batches, scan_blocks
from millstream.log.runtime.context import LogContext
from millstream.log.runtime.tail import Tail

ACK_SECONDS = 0.1
"""Acknowledgements are stored at the latest this long after they were made: the window of promise P3.

In a bucket, where that is a request that is paid for, it is ten times the linger of writers.
"""

_RETRY_SECONDS = 5.0  # after the store has refused
_POLL_SECONDS = (0.001, 0.05)  # intervals at which a follower polls for messages of other processes: shortest, longest
_LINGERS_AT_REST = 5
_LINGERS_UNSTORED = 10

_logger = logging.getLogger(__name__)


class PollPauses:
    """How long a follower waits before it looks again: longer and longer, so that an idle log costs nothing.

    Where a look is paid for, writers wait *min_linger* seconds for company, and followers as long or longer.
    """

    def __init__(self, min_linger: float = 0.0) -> None:
        self._seconds = max(_POLL_SECONDS[0], min_linger)
        self._longest = max(_POLL_SECONDS[1], _LINGERS_AT_REST * min_linger)

    def next(self) -> float:
        """The next pause, in seconds."""
        seconds = self._seconds
        self._seconds = min(2 * seconds, self._longest)
        return seconds


def wait_for_more(tail: Tail, turn: int, pauses: PollPauses, is_at_end: Callable[[], bool]) -> None:
    """Wait for *pauses* until *is_at_end* is False, or *tail* has moved since *turn*."""
    while True:
        tail.wait(turn, pauses.next())
        if tail.turn != turn or not is_at_end():
            return


class Reader(ClosesOnExit):
    """Reads one log for one consumer; a newer reader of the same name takes this one's place.

    Made by :meth:`millstream.log.Log.reader`; close it, or use it in a ``with`` block. Batches are for one thread;
    :meth:`ack` is for any.
    """

    def __init__(self, log: str, consumer: str, context: LogContext) -> None:
        self._backend = context.backend
        self._scheduler = context.scheduler
        self._tail = context.tail
        self._min_linger = context.min_linger
        self._ack_seconds = max(ACK_SECONDS, _LINGERS_UNSTORED * context.min_linger)
        self._log = log
        self._key = consumer_key(consumer)
        self._consumer = consumer
        self._lock = threading.Lock()
        self._storing = threading.Lock()
        self._dirty = False
        self._unanswered: bytes | None = None  # the state that was sent last, while it is not known to be stored
        self._fenced = False
        self._closed = False
        self._seeks = 0
        self._missed = 0
        position, self._version = self._take_place()
        self._frontier = Frontier(position.pointer, position.ahead)
        self._next = position.pointer + 1
        self._end = position.pointer
        self._last_stored = self._frontier.last  # 0 after it was compared with the log

    @property
    def pointer(self) -> int:
        """The largest id up to which everything is acknowledged."""
        return self._frontier.pointer

    @property
    def missed(self) -> int:
        """How many ids this reader was given as gaps and has gone over."""
        return self._missed

    def batches(
        self,
        max_messages: int = 65_536,
        *,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        gaps: Gaps = "trimmed",
    ) -> Iterator[Batch]:
        """The messages after those delivered before, in order, without those acknowledged already.

        Ends at the end of the log, or with *follow* when the reader is closed. Where messages that this consumer has
        not acknowledged were trimmed, one :class:`Gap` reports it; it counts as acknowledged when the next batch is
        asked for. With ``gaps="all"`` missing and damaged blocks are given as gaps too, with ``"none"`` nothing is.
        What is not given is raised: :class:`TrimmedError`, :class:`CorruptBlockError`, :class:`MissingBlockError`.
        Raises :class:`FencedError`.
        """
        if max_messages < 1:
            raise LogInputError(f"max_messages must be at least 1, not {max_messages}")
        pauses = PollPauses(self._min_linger)
        while not self._closed:
            turn, seeks = self._tail.turn, self._seeks
            for batch in self._deliver(max_messages, columns, gaps):
                yield batch
                pauses = PollPauses(self._min_linger)
            if self._seeks != seeks:
                continue
            if not follow:
                return
            wait_for_more(self._tail, turn, pauses, functools.partial(self._is_at_end, seeks))

    def seek(self, first_id: int) -> None:
        """Continue with the message *first_id*: earlier messages count as acknowledged, it and later ones do not.

        Stored at once; an open :meth:`batches` continues there after the batch it has given. To go to a time, ask
        :meth:`millstream.log.Log.first_id_since` for the id. Raises :class:`LogInputError` for an id that the log has
        not and that is not its next one, :class:`FencedError`.
        """
        with self._lock:
            self._check_open()
            head = self._backend.head(self._log)
            self._end = head.last_id
            if not head.first_id <= first_id <= self._end + 1:
                raise LogInputError(
                    f"cannot read log {self._log!r} from id {first_id}: choose {head.first_id} to {self._end + 1}"
                )
            self._frontier = Frontier(first_id - 1)
            self._next = first_id
            self._last_stored = 0
            self._seeks += 1
            self._dirty = True
        self.flush()

    def ack(self, ids: int | IdRange | Iterable[int] | npt.NDArray[np.int64]) -> None:
        """These messages are done, in any order: one id, a range (``batch.ids``), or many ids.

        Thread-safe. Stored within :data:`ACK_SECONDS`, on :meth:`flush` and on :meth:`close`. Raises
        :class:`LogInputError` for ids that the log has not, :class:`FencedError`.
        """
        if isinstance(ids, int):
            first, last, many = ids, ids, None
        elif isinstance(ids, IdRange):
            first, last, many = ids.first, ids.last, None
        else:
            many = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)
            if not len(many):
                return
            first, last = int(many.min()), int(many.max())
        with self._lock:
            self._check_open()
            self._check_exists(first, last)
            if many is None:
                self._frontier.add(first, last)
            else:
                self._frontier.add_ids(many)
            self._note_change()

    def flush(self) -> None:
        """Store what was acknowledged, now. Raises :class:`FencedError`."""
        with self._storing:
            with self._lock:
                if self._fenced and not self._closed:
                    self._check_open()
                if not self._dirty or self._fenced:
                    return
                self._dirty = False
                position = ConsumerPosition(self._frontier.pointer, tuple(self._frontier.ahead))
            self._store(position)

    def close(self) -> None:
        """Store what was acknowledged and end every :meth:`batches`. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._tail.announce()
        self.flush()

    def __reduce__(self) -> str:
        raise TypeError("a reader cannot be passed to another process: open the store by its URL there")

    def _note_change(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._scheduler.after(self._ack_seconds, self._flush_later)

    def _flush_later(self) -> None:
        with contextlib.suppress(FencedError):  # the next acknowledgement tells
            self.flush()

    def _take_place(self) -> tuple[ConsumerPosition, int]:
        while True:
            state = self._backend.get_state(self._log, self._key)
            position = decode_position(state)
            if self._backend.put_state(self._log, self._key, encode_position(position), version=state.version):
                return position, state.version + 1

    def _is_at_end(self, seeks: int) -> bool:
        """Whether there seems to be nothing to deliver, and no process has sought since *seeks* was read."""
        return self._seeks == seeks and not self._closed and self._backend.is_at_end(self._log, self._next - 1)

    def _deliver(self, max_messages: int, columns: Sequence[str] | None, gaps: Gaps) -> Iterator[Batch]:
        head = self._backend.extent(self._log)
        self._end = head.last_id
        if self._last_stored > head.last_id:
            self._forget_lost_messages()
        self._last_stored = 0
        with self._lock:
            seeks = self._seeks
            parts = self._undelivered(head)
        for ids in parts:
            blocks = scan_blocks(self._backend, self._log, ids, head.first_id)
            found = cut_batches(blocks, ids, log=self._log, max_messages=max_messages, columns=columns, gaps=gaps)
            for batch in found:
                with self._lock:
                    self._check_open()
                    if self._seeks != seeks:
                        return
                    self._next = batch.last_id + 1
                yield batch
                if isinstance(batch, Gap):
                    self._pass_over(batch, seeks)
        with self._lock:
            if self._seeks == seeks:
                self._next = head.last_id + 1  # and not that of _end, which ack() moves

    def _forget_lost_messages(self) -> None:
        """Where the log lost messages that this consumer has acknowledged, let it get those that get their ids."""
        last_id = self._backend.head(self._log).last_id
        if self._last_stored <= last_id:
            return
        _logger.warning(
            "consumer %s has acknowledged messages of log %s up to id %d, but the log ends at id %d: it was restored "
            "from an older backup, or lost messages at a power loss (durability=os). New messages with these ids are "
            "delivered",
            self._consumer,
            self._log,
            self._last_stored,
            last_id,
        )
        with self._lock:
            self._frontier = self._frontier.up_to(last_id)
            self._next = min(self._next, last_id + 1)
            self._dirty = True
        self.flush()

    def _undelivered(self, head: Head) -> list[IdRange]:
        """The deliveries, in order; a trimmed range comes first, as one gap."""
        trimmed = self._frontier.missing(IdRange(self._next, head.first_id - 1))
        kept = self._frontier.missing(IdRange(max(self._next, head.first_id), head.last_id))
        return [*([IdRange(trimmed[0].first, trimmed[-1].last)] if trimmed else []), *kept]

    def _pass_over(self, gap: Gap, seeks: int) -> None:
        _logger.warning(
            "consumer %s skips ids %d to %d of log %s: %s",
            self._consumer,
            gap.first_id,
            gap.last_id,
            self._log,
            gap.reason,
        )
        with self._lock:
            if self._seeks != seeks:
                return
            self._missed += len(gap.ids)
            self._frontier.add(gap.first_id, gap.last_id)
            self._note_change()

    def _check_exists(self, first: int, last: int) -> None:
        if last > self._end:
            self._end = self._backend.head(self._log).last_id
        if first < 1 or last > self._end:
            wrong = first if first < 1 else last
            ids = f"ids 1 to {self._end}" if self._end else "no messages"
            raise LogInputError(f"cannot acknowledge id {wrong}: log {self._log!r} has {ids}")

    def _check_open(self) -> None:
        if self._fenced:
            raise FencedError(
                f"another reader of log {self._log!r} has taken over the consumer {self._consumer!r}, "
                "and the acknowledgements of this reader are not stored: give each reader its own "
                "consumer name"
            )
        if self._closed:
            raise LogError(f"this reader of log {self._log!r} is closed: open a new reader")

    def _store(self, position: ConsumerPosition) -> None:
        try:
            stored = self._unanswered is None or self._put(self._unanswered)
            stored = stored and self._put(encode_position(position))
        except BaseException:
            with self._lock:
                self._dirty = True
            self._scheduler.after(_RETRY_SECONDS, self._flush_later)
            raise
        if stored:
            return
        self._fenced = True
        if not self._closed:
            raise FencedError(
                f"another reader of log {self._log!r} has taken over the consumer {self._consumer!r}: give "
                "each reader its own consumer name"
            )

    def _put(self, value: bytes) -> bool:
        """Store *value* as the next version; False if another reader was faster.

        After a failure it is called with the same value first: that may be stored, and only the reply was lost.
        """
        again, self._unanswered = value == self._unanswered, value
        stored = self._backend.put_state(self._log, self._key, value, version=self._version)
        if again and not stored:
            stored = self._backend.get_state(self._log, self._key) == VersionedValue(self._version + 1, value)
        self._unanswered = None
        self._version += stored
        return stored
