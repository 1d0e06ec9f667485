"""The batcher as a service in this process: a log in, batches and rejects as messages of another log out.

Time comes from the log alone. The receive time of the last message that was read is the batcher's clock, and where no
message comes although a batch is due, a *tick* is appended to the log. So a replay needs no timer, and gives the same.

After a crash nothing is lost and nothing comes out twice. What comes of the messages up to an id is appended in one
commit whose sequence is that id; the snapshot in the state may be older, for what is replayed from there on is
known by its sequence and dropped by the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.adaptive import AdaptiveBatcher
from millstream.batching.batch_config import BatchConfig
from millstream.batching.batch_log import output_messages, output_rows
from millstream.batching.errors import BatchServiceError
from millstream.batching.message_columns import COLUMNS, event_columns, split_out_of_range
from millstream.batching.message_events import TICK_SOURCE
from millstream.batching.metrics import record_closed, record_delays, record_open
from millstream.batching.newest_batch import (
    foreign_batches,
    is_made_by,
    is_made_from,
    other_rules,
    shortened_source,
    state_beyond_source,
)
from millstream.batching.output_end import end_of, goes_as_far, refuse_handed_over
from millstream.batching.rule_changes import RulesRecord, take_request
from millstream.batching.rulebook import Rulebook
from millstream.batching.service_state import ServiceState, is_blank, known_end, naming_state, read_state, write_state
from millstream.batching.ticks import Ticker
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.clock import Clock, SystemClock
from millstream.core.documents import Document
from millstream.core.metric_collection.hook import Metrics, NoMetrics
from millstream.core.timestamps import time_text
from millstream.log import Log

_PAUSE = 0.05
"""Seconds between two looks at a log of which little comes: a commit costs milliseconds, however little is in it."""

_MOST_PAUSES = 5
"""How many pauses there are at most between two looks at an idle log, unless a writer of this process appends to it."""

_LOOK = 5.0
"""Seconds between two looks for a requested change of the rules; in a bucket each costs a request."""

_SAVE_SECONDS = 60.0
"""How old a saved state gets: a service that starts from it needs the messages since then, which a rule may trim."""

_SAVE_SHARE = 100
"""A large state is saved less often: for one part in so many of the time at most."""

_MUCH = 2000
"""After a read with this many messages, the next one begins without a pause."""


class BatchService:
    """Batches the messages of *source* into *output*, whose producer ``batching`` it is.

    *state* holds its snapshots (made when it is absent); *ticks* appends ticks to *source*
    (:mod:`~millstream.batching.ticks`): without it quiet sources close when the next message of any source comes. What
    comes of *commit_every* messages is one commit; after *save_every* the state is saved, and in :meth:`run` once a
    minute, so that no more need be replayed. Where *output* has batches, *rules* must be the latest by which they were
    made: see :mod:`~millstream.batching.rule_changes`.

    Raises :class:`~millstream.batching.errors.SnapshotError` where *state* is of other logs or rules,
    :class:`~millstream.batching.errors.ConfigError` where *rules* are not the latest,
    :class:`~millstream.batching.errors.BatchServiceError` where *output* or *state* came of more than *source* holds,
    or *output* of another log, and the errors of the log, such as :class:`TrimmedError` for a source that was
    trimmed beyond where the service stood. Use it as one thread; :meth:`close` it.
    """

    _batcher: AdaptiveBatcher
    _record: RulesRecord

    def __init__(
        self,
        source: Log,
        output: Log,
        rules: BatchConfig | Rulebook,
        state: Document,
        *,
        ticks: Ticker | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        commit_every: int = 32_768,
        save_every: int = 100_000,
    ) -> None:
        self._commit_every, self._save_every = commit_every, save_every
        self._source, self._output, self._state, self._ticks = source, output, state, ticks
        self._clock = clock or SystemClock()
        self._metrics = metrics or NoMetrics()
        self._position = self._saved = source.first_id - 1
        self._torn = self._closed = False
        self._look_at = self._save_at = 0.0
        self._writer = output.writer("batching")
        try:
            self._continue(rules if isinstance(rules, Rulebook) else Rulebook(rules))
        except BaseException:
            self._writer.close()
            raise
        self._measure_open()

    @property
    def position(self) -> int:
        """The id of the last message that was taken."""
        return self._position

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    @property
    def rules(self) -> Rulebook:
        """The rules with all changes."""
        return self._batcher.rules

    @property
    def patience(self) -> int:
        """The longest time (microseconds) from an event until it is certain that it is in a batch or rejected."""
        return self.rules.patience_at(self._batcher.clock)

    @property
    def behind(self) -> int:
        """How many messages of the input have not been taken yet."""
        return self._source.last_id - self._position

    def step(self, stopped: Callable[[], bool] = lambda: False, between: Callable[[], object] = lambda: None) -> int:
        """Process the present messages of *source*, or until *stopped* returns True; returns their number.

        *between* is called before each commit, for work in the same thread.
        Raises :class:`~millstream.batching.errors.BatchServiceError` where a message was received before the one
        before it: such a log was imported out of order, and is for the job ``batch``.
        """
        begin = self._position
        if begin < self._writer.sequence:  # what came out of these is in the output already
            self._take_up_to(self._writer.sequence, stopped, between)
        self._take_up_to(None, stopped, between)
        return self._position - begin

    def tick(self) -> bool:
        """Append a tick where a batch is due and the log has not said so; True where that was done.

        False also where the log is held by a writer elsewhere.
        """
        due = self._batcher.due
        if self._ticks is None or due is None or self._clock.now() < due:
            return False
        return self._ticks()

    def run(self, stopped: Callable[[], bool], between: Callable[[], object] = lambda: None) -> None:
        """Run until *stopped* returns True, which is called before each commit.

        *between* is called before that, and again and again while the log is idle: for work in the same thread.
        """
        appended, pauses = threading.Event(), 1
        stop_listening = self._source.on_append(lambda _last_id: appended.set())
        try:
            while True:
                between()
                if stopped():
                    return
                appended.clear()
                taken = self.step(stopped, between)
                if self._position > self._saved and self._clock.monotonic() >= self._save_at:
                    self.save()
                self._change_when_requested()
                pauses = 1 if taken else min(pauses + 1, _MOST_PAUSES)
                if taken < _MUCH and (taken or not self.tick()):
                    if not taken:
                        self._measure_open()  # while nothing comes, a batch that is due is more overdue at each look
                    self._rest(pauses, appended)
        finally:
            stop_listening()

    def save(self) -> None:
        """Write the state, durably, unless another process has taken over the output: its state is the valid one."""
        if not self._record.is_mine:
            return
        began, names = self._clock.monotonic(), (self._source.name, self._output.name)
        state = ServiceState(*names, self._position, self._batcher.snapshot(), end_of(self._writer))
        write_state(self._state, state)
        self._saved, ended = self._position, self._clock.monotonic()
        self._save_at = ended + max(_SAVE_SECONDS, _SAVE_SHARE * (ended - began))

    def close(self) -> None:
        """Save the state and release *output*.

        After an append that failed nothing is saved: the batcher knows of messages that the output knows nothing of.
        Closing again does nothing: another service may have gone on since.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._torn:
                self.save()
        finally:
            self._writer.close()

    def _rest(self, pauses: int, appended: threading.Event) -> None:
        """Rest for so many *pauses*, or until a writer of this process has *appended* something."""
        for _ in range(pauses):
            self._clock.sleep(_PAUSE)
            if appended.is_set():
                return

    def _change_when_requested(self) -> None:
        """Go on by other rules where an operator has asked for them; looks every :data:`_LOOK` seconds."""
        if self._clock.monotonic() < self._look_at or self._position < self._writer.sequence:
            return
        self._look_at = self._clock.monotonic() + _LOOK
        rules = take_request(self._record, self.rules, self._batcher.clock, self._clock.now())
        if rules is not None:
            self._batcher = AdaptiveBatcher(rules, self._batcher.snapshot())
            self.save()

    def _continue(self, rules: Rulebook) -> None:
        """Take up the state. The rules are read under the lease: see :mod:`~millstream.batching.rule_changes`."""
        source, output = self._source, self._output
        kept, end = read_state(self._state, source.name, output.name), end_of(self._writer)
        self._refuse_shorter_source(kept)
        if not goes_as_far(end, known_end(kept), source, output, self._state):
            kept = None
        with naming_state(self._state):
            blank = is_blank(kept, end)
        used = None if kept is None or blank else kept.snapshot
        self._record = RulesRecord(output)
        rules = self._record.in_force(rules, is_blank=blank)
        with naming_state(self._state):
            self._batcher = AdaptiveBatcher(rules, used)
        if kept:
            self._position = self._saved = kept.position
        self._check_source(kept)
        if used is None and self._record.is_empty and end.sequence and not is_made_by(rules, output, source):
            raise BatchServiceError(other_rules(output.name, rules))
        self._record.keep(rules)
        if used is None or (kept is not None and kept.end is None):
            self.save()  # the rules and, as the source may have been trimmed, the beginning: the output depends on both

    def _refuse_shorter_source(self, kept: ServiceState | None) -> None:
        """Raise :class:`BatchServiceError` where the output or *kept* is beyond the end of the source."""
        source, written = self._source, self._writer.sequence
        if written > source.last_id:
            raise BatchServiceError(shortened_source(self._output.name, source, written))
        if kept is not None and kept.position > source.last_id:
            raise BatchServiceError(state_beyond_source(self._state, kept.position, source))

    def _check_source(self, kept: ServiceState | None) -> None:
        """Raise :class:`BatchServiceError` where the output or *kept* did not come of the source as it is now."""
        source, output, written = self._source, self._output.name, self._writer.sequence
        if kept is None:
            refuse_handed_over(end_of(self._writer), source, self._output, self._state)
        if kept is None and self._position and written:
            raise BatchServiceError(
                f"the state {self._state} of the batch service is missing, and log {source.name!r} was trimmed and "
                f"begins at message {self._position + 1}, so that its earlier batches cannot be computed again. "
                "Restore the state from a backup, or choose another output log"
            )
        if written and not is_made_from(self._output, source, has_state=kept is not None):
            raise BatchServiceError(foreign_batches(output, source.name))

    def _take_up_to(self, last_id: int | None, stopped: Callable[[], bool], between: Callable[[], object]) -> None:
        for batch in self._source.read(self._position + 1, last_id, COLUMNS, gaps="none"):
            messages = batch.arrow.select(COLUMNS)
            for first in range(0, len(messages), self._commit_every):
                self._change_when_requested()
                between()
                if stopped():
                    return
                self._take(messages.slice(first, self._commit_every))
                if self._position - self._saved >= self._save_every:
                    self.save()

    def _take(self, messages: pa.RecordBatch) -> None:
        self._check_order(messages)
        last_id, bound = messages.column("id")[-1].as_py(), messages.column("received_at")[-1].as_py()
        records = messages.filter(pc.not_equal(messages.column("source"), TICK_SOURCE))
        self._torn = True
        events, beyond = split_out_of_range(event_columns(records))
        closed = self._batcher.step(events, min(bound, MAX_SAFE_INTEGER))
        closed = closed._replace(rejects=pa.concat_tables([closed.rejects, beyond]))
        self._writer.append(output_messages([output_rows(closed)]), sequence=last_id)
        self._position, self._torn = last_id, False
        record_delays(self._metrics, records)
        record_closed(self._metrics, closed)
        self._measure_open()

    def _measure_open(self) -> None:
        record_open(self._metrics, self._batcher.open_sources, self._batcher.due, self._clock.now())

    def _check_order(self, messages: pa.RecordBatch) -> None:
        received = messages.column("received_at").to_numpy()
        clock = self._batcher.clock
        before = np.concatenate([received[:1] if clock is None else [clock], received[:-1]])
        back = np.flatnonzero(received < before)
        if len(back):
            place = int(back[0])
            raise BatchServiceError(
                f"message {messages.column('id')[place].as_py()} of log {self._source.name!r} has the receive time "
                f"{time_text(int(received[place]))}, earlier than {time_text(int(before[place]))}, that "
                "of the previous message. A batch service needs receive times that never decrease: batch such a log, "
                f"for example an imported one, with `millstream pipeline batch {self._source.name}`"
            )
