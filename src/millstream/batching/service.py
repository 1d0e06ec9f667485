"""The batcher as a service in this process: a log in, batches and rejects as messages of another log out.

Time comes from the log alone. The receive time of the last message that was read is the batcher's clock, and where no
message comes although a batch is due, a *tick* is appended to the log. So a replay needs no timer, and gives the same.

After a crash nothing is lost and nothing comes out twice. What comes of the messages up to an id is appended in one
commit whose sequence is that id; the snapshot in the state file may be older, for what is replayed from there on is
known by its sequence and dropped by the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.batching.batcher import Batcher
from millstream.batching.batchlog import output_message
from millstream.batching.config import BatchConfig
from millstream.batching.errors import ServiceError
from millstream.batching.event import EventBatch, Outcome, Reject
from millstream.batching.messages import TICK_SOURCE, event_of
from millstream.batching.rulebook import Rulebook
from millstream.batching.servicestate import ServiceState, read_state, write_state
from millstream.batching.ticks import Ticker
from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.message import Message
from millstream.core.metrics import Metrics, NoMetrics
from millstream.log import Log

_PAUSE = 0.05  # seconds between two looks at a log at rest


class BatchService:
    """Batches the messages of *source* into *output*, whose producer ``batching`` it is.

    *state* is the file of its snapshots (made when it is absent); *ticks* appends ticks to *source*
    (:mod:`~millstream.batching.ticks`): without it quiet sources close when the next message of any source comes. What
    comes of *commit_every* messages is one commit; after *save_every* the state is saved, so that no more need be
    replayed. Raises :class:`~millstream.batching.errors.SnapshotError` where *state* is of other logs or rules,
    :class:`~millstream.batching.errors.ServiceError` where *output* came of more than *source* holds, and the errors of
    the log, such as :class:`TrimmedError` for a source that was trimmed beyond where the service stood. Use it as one
    thread; :meth:`close` it.
    """

    def __init__(
        self,
        source: Log,
        output: Log,
        rules: BatchConfig | Rulebook,
        state: Path,
        *,
        ticks: Ticker | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        commit_every: int = 8192,
        save_every: int = 100_000,
    ) -> None:
        self._commit_every, self._save_every = commit_every, save_every
        self._source, self._output, self._path, self._ticks = source, output, state, ticks
        self._clock = clock or SystemClock()
        self._metrics = metrics or NoMetrics()
        kept = read_state(state, source.name, output.name)
        self._batcher = Batcher.restore(kept.snapshot, rules) if kept else Batcher.of(rules)
        self._position = self._saved = kept.position if kept else source.first_id - 1
        self._torn = False
        self._writer = output.writer("batching")
        if self._writer.sequence > source.last_id:
            self._writer.close()
            raise ServiceError(
                f"{output.name!r} holds what came of {source.name!r} up to message {self._writer.sequence}, but that "
                f"log ends at {source.last_id}: it is not the same any more. Give the service another output"
            )
        if kept is None and self._position:
            self._begin_in_the_middle()

    @property
    def position(self) -> int:
        """The id of the last message that was taken."""
        return self._position

    @property
    def behind(self) -> int:
        """How many messages of the input have not been taken yet."""
        return self._source.last_id - self._position

    def step(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Take what *source* has by now, or until *stopped* says so; returns how many messages that were.

        Raises :class:`~millstream.batching.errors.ServiceError` where a message was received before the one before it:
        such a log was imported out of order, and is for the job ``batch``.
        """
        begin = self._position
        if begin < self._writer.sequence:  # what came out of these is in the output already
            self._take_up_to(self._writer.sequence, stopped)
        self._take_up_to(None, stopped)
        return self._position - begin

    def tick(self) -> bool:
        """Append a tick where a batch is due and the log has not said so; True where that was done.

        False also where the log is held by a writer elsewhere.
        """
        due = self._batcher.due
        if self._ticks is None or due is None or self._clock.now() < due:
            return False
        return self._ticks()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Go on until *stopped* says so; it is asked after each commit."""
        while not stopped():
            if not self.step(stopped) and not self.tick():
                self._clock.sleep(_PAUSE)

    def save(self) -> None:
        """Write the state file, durably."""
        state = ServiceState(self._source.name, self._output.name, self._position, self._batcher.snapshot())
        write_state(self._path, state)
        self._saved = self._position

    def close(self) -> None:
        """Save the state and let go of *output*.

        After an append that failed nothing is saved: the batcher knows of messages that the output knows nothing of.
        """
        try:
            if not self._torn:
                self.save()
        finally:
            self._writer.close()

    def _begin_in_the_middle(self) -> None:
        """The source was trimmed: what comes out depends on where the service begins, so that is put down first."""
        if self._writer.sequence:
            self._writer.close()
            raise ServiceError(
                f"{self._path} is gone, and {self._source.name!r} was trimmed to begin at {self._position + 1}, so "
                "what came before cannot be made again. Restore the state from a copy, or name another output"
            )
        self.save()

    def _take_up_to(self, last_id: int | None, stopped: Callable[[], bool]) -> None:
        for batch in self._source.read(self._position + 1, last_id, gaps="none"):
            messages = list(batch)
            for first in range(0, len(messages), self._commit_every):
                if stopped():
                    return
                self._take(messages[first : first + self._commit_every])
                if self._position - self._saved >= self._save_every:
                    self.save()

    def _take(self, messages: Sequence[Message]) -> None:
        self._check_order(messages)
        events = [event_of(message) for message in messages if message.source != TICK_SOURCE]
        bound = messages[-1].received_at
        assert bound is not None
        self._torn = True
        received, settled = self._batcher.receive_many(events), self._batcher.advance(bound)
        outcome = Outcome(received.batches + settled.batches, received.rejects + settled.rejects)
        found: list[EventBatch | Reject] = [*outcome.batches, *outcome.rejects]
        self._writer.append([output_message(item) for item in found], sequence=messages[-1].id)
        self._position, self._torn = messages[-1].id, False
        self._measure(messages, outcome)

    def _check_order(self, messages: Sequence[Message]) -> None:
        before = self._batcher.clock
        for message in messages:
            received_at = message.received_at
            assert received_at is not None
            if before is not None and received_at < before:
                raise ServiceError(
                    f"message {message.id} of {self._source.name!r} was received at {received_at}, the one before it "
                    f"at {before}: batch an imported log with `millstream pipeline batch {self._source.name}`"
                )
            before = received_at

    def _measure(self, messages: Sequence[Message], outcome: Outcome) -> None:
        metrics = self._metrics
        delays = [_delay(message) / MICROSECONDS for message in messages if message.source != TICK_SOURCE]
        metrics.observe_many("batching_delay_seconds", delays)
        for reject in outcome.rejects:
            metrics.count("batching_rejects_total", reason=reject.reason)
        for batch in outcome.batches:
            metrics.count("batching_batches_total", cut=batch.cut, kind=batch.kind)
        metrics.gauge("batching_open_sources", self._batcher.open_sources)
        due = self._batcher.due
        overdue = 0 if due is None else max(0, self._clock.now() - due)
        metrics.gauge("batching_settle_lag_seconds", overdue / MICROSECONDS)


def _delay(message: Message) -> int:
    assert message.received_at is not None
    assert message.event_time is not None
    return message.received_at - message.event_time
