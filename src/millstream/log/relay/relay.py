"""The relay: moves an outbox into a log, batch by batch, whatever dies in between."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import msgspec

from millstream.core import tracing
from millstream.core.clock import Clock
from millstream.core.metric_collection.hook import Metrics, NoMetrics
from millstream.core.retry import RetryPolicy
from millstream.log.errors import LogError, WriterBusyError
from millstream.log.log import Log
from millstream.log.relay.outbox import Outbox, OutboxBatch
from millstream.log.relay.progress import RelayProgress
from millstream.log.writing.writer import Writer

_log = logging.getLogger(__name__)

BACK_OFF = RetryPolicy(attempts=1 << 62, first=0.1, factor=2.0, longest=10.0, jitter=0.5)
SHORTEST_PAUSE = 0.005


class RelayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a relay since its start: messages, batches of them, and rows put aside as no messages.

    ``last_row`` is the largest id of the last batch, ``last_id`` the last id of the log.
    """

    messages: int = 0
    batches: int = 0
    dead: int = 0
    last_row: int = 0
    last_id: int = 0


class Relay:
    """Moves *outbox* into *log*, as the log's one writer. :meth:`run` ends by itself or when *stopped* returns True.

    While :meth:`follow` cannot reach the outbox or the log, the gauge ``relay_connected`` of *metrics* is 0.
    """

    def __init__(
        self,
        outbox: Outbox,
        log: Log,
        clock: Clock,
        stopped: Callable[[], bool] = lambda: False,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or NoMetrics()
        self._outbox = outbox
        self._log = log
        self._clock = clock
        self._stopped = stopped
        self.relayed = RelayResult()
        self._ahead = 0
        """The sequence of the log at which it was last told that the log is ahead of the outbox."""
        self._compared: Writer | None = None
        """The writer whose log was compared with the outbox when it was taken; what another relay moves comes later."""
        self.writer: Writer | None = None
        """The log's writer, while it is this relay's: for others of this process that have something to append."""

    def run(self) -> Iterator[RelayResult]:
        """Move all rows that are there; yields after each batch, and when there is nothing more.

        A begun batch is finished even if *stopped* returns True. Raises :class:`WriterBusyError` where the log has a
        writer, :class:`FencedError`, :class:`PoisonRowError`, :class:`OutboxTakenError`, :class:`StorageError`.
        """
        progress = self._outbox.progress()
        with self._writing(progress) as writer:
            yield from self._move_all(writer)

    def follow(self, *, longest_pause: float = 0.5, standby: bool = False) -> Iterator[RelayResult]:
        """Like :meth:`run`, but continues with new rows until *stopped* returns True.

        An empty outbox is examined after *longest_pause* seconds at the latest. Temporary failures (such as a store
        that is unreachable for long) are retried. With *standby* it waits until the log has no other writer.
        """
        pauses, waits = BACK_OFF.pauses(), standby
        while not self._stopped():
            before = self.relayed
            try:
                yield from self._follow(longest_pause)
            except LogError as error:
                moved = self.relayed != before
                is_busy = isinstance(error, WriterBusyError)
                if not (_is_transient(error) or (is_busy and waits)):
                    raise
                pauses = BACK_OFF.pauses() if moved else pauses
                if not is_busy:
                    _log.warning("%s; the relay of outbox %s tries again", error, self._outbox.table.name)
                self._metrics.gauge("relay_connected", int(is_busy))
                waits = True  # the lease that an outage has left behind is our own
                self._clock.sleep(next(pauses))

    def _follow(self, longest_pause: float) -> Iterator[RelayResult]:
        progress = self._outbox.progress()
        pause = SHORTEST_PAUSE
        with self._writing(progress) as writer:
            while not self._stopped():
                before = self.relayed.batches
                yield from self._move_all(writer)
                self._metrics.gauge("relay_connected", 1)
                pause = SHORTEST_PAUSE if self.relayed.batches != before else min(2 * pause, longest_pause)
                if not self._stopped():
                    self._clock.sleep(pause)

    @contextlib.contextmanager
    def _writing(self, progress: RelayProgress) -> Iterator[Writer]:
        with self._log.writer(progress.producer) as writer:
            self.writer = writer
            try:
                yield writer
            finally:
                self.writer = None

    def _move_all(self, writer: Writer) -> Iterator[RelayResult]:
        progress = self._settled(writer)
        while True:
            batch = None if progress is None else self._outbox.advance(progress, self._next_number(progress, writer))
            if batch is None:  # another process has moved it, or the reply was lost
                progress = self._settled(writer)
                continue
            if not batch.progress.rows:
                self._count(batch, 0, writer)
                yield self.relayed
                if not batch.dead:
                    return
            else:
                self._append(writer, batch)
                yield self.relayed
            progress = batch.progress
            if self._stopped():
                self._outbox.finish(progress)
                return

    def _settled(self, writer: Writer) -> RelayProgress:
        """How far the outbox was moved, once the log certainly has its last batch."""
        progress = self._outbox.progress()
        is_first, self._compared = writer is not self._compared, writer
        last = progress.number - bool(progress.rows)
        if is_first and 0 < writer.sequence < last:  # 0: a copy of the log, or a new one
            _log.warning(
                "log %s ends with batch %d of outbox %s, but got batch %d: the log was restored from a backup, or lost "
                "messages at a power loss (durability=os). Their rows are deleted unless the relay marks rows (--mark)",
                self._log.name, writer.sequence, self._outbox.table.name, last,
            )  # fmt: skip
        if progress.rows and writer.sequence < progress.number:
            self._append(writer, OutboxBatch(progress, self._outbox.reread(progress)))
        elif writer.sequence > max(progress.number, self._ahead):
            self._ahead = writer.sequence
            _log.warning(
                "log %s has batch %d of outbox %s, but the outbox records only batch %d: the database of the outbox "
                "was restored from a backup, or is not durable. Messages may be delivered twice",
                self._log.name, writer.sequence, self._outbox.table.name, progress.number,
            )  # fmt: skip
        return progress

    def _append(self, writer: Writer, batch: OutboxBatch) -> None:
        if batch.messages:
            with tracing.entering("relay", batch.messages, log=self._log.name) as messages:
                writer.append(list(messages), sequence=batch.progress.number)
        self._count(batch, 1, writer)

    def _next_number(self, progress: RelayProgress, writer: Writer) -> int:
        """Above all that outbox or log know of, so that no batch is ever taken for another."""
        return max(progress.number, writer.sequence) + 1

    def _count(self, batch: OutboxBatch, batches: int, writer: Writer) -> None:
        before, rows = self.relayed, batch.progress.rows
        self.relayed = RelayResult(
            messages=before.messages + len(batch.messages),
            batches=before.batches + batches,
            dead=before.dead + batch.dead,
            last_row=rows[-1].last if rows else before.last_row,
            last_id=writer.last_id,
        )


def _is_transient(error: LogError) -> bool:
    """Whether the store, or the database, was unreachable: a writer that failed for that tells so by its cause."""
    if isinstance(error, WriterBusyError):
        return False
    return error.transient or bool(getattr(error.__cause__, "transient", False))
