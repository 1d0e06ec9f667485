"""The state of one consumer group of one topic: a pure state machine without storage, time or threads.

Every change that has to survive is an event of the journal; the same methods apply it when it is decided and when the
journal is read again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.log import MAX_ID, Frontier, IdRange
from millstream.messaging.broker.delivery.expiry_timers import ExpiryTimers
from millstream.messaging.broker.delivery.id_ranges import IdRanges
from millstream.messaging.broker.delivery.in_flight_runs import InFlightRun, InFlightRuns, LeaseTerms
from millstream.messaging.broker.delivery.message_group_queues import MessageGroupQueues

RENEW_STEP = 60 * MICROSECONDS
"""For how long a message that the broker renews is hidden at a time, where nothing else is said."""

RENEW_LONGEST = 3 * 3600 * MICROSECONDS
"""For how long a message is renewed at most."""

_SPARE = 1_000
"""Number of outdated attempts that are kept in addition to one for each run in flight."""


class GroupDelivery:
    """The messages of a topic as one group sees them. With *fifo* those of a message group go one after another.

    A message is done, or in flight (with a consumer, or waiting to be given again), or has not been looked at:
    :attr:`next` is the first of those.
    """

    def __init__(self, *, fifo: bool = False, renew_step: int = RENEW_STEP) -> None:
        self.fifo = fifo
        self._renew_step = renew_step
        self.next = 1
        self.done = Frontier()
        self.in_flight = InFlightRuns()
        self._waiting: list[tuple[int, int]] = []  # ranges of ids to be given again, a heap; of topics without order
        self._timers = ExpiryTimers(self.in_flight)
        self._group_queues = MessageGroupQueues(self._is_free)
        self._attempts: dict[str, list[tuple[int, int]]] = {}  # what was given by attempt id; outdated is skipped
        self._seen_to = 0  # the largest id that was ever in flight or done

    # Time

    def next_due(self) -> int | None:
        """The time at which the next message may become visible again (microseconds); None if none is with a
        consumer."""
        return self._timers.next_due()

    def expire(self, now: int, is_connected: Callable[[str, str], bool]) -> None:
        """Let what was lent until *now* be given again, but for what is renewed.

        *is_connected* says whether a client still has a connection: if the one is gone by which a message was sent,
        it is unknown whether it arrived, and it is renewed no more.
        """
        while (due := self.next_due()) is not None and due <= now:
            for run in self._timers.take():
                may_be_renewed = run.terms.renew and now < run.terms.at + RENEW_LONGEST
                if may_be_renewed and is_connected(run.terms.client, run.terms.connection):
                    self._set_until(run, until=self._renewed_until(due, now))
                else:
                    self._come_back(run)

    def expire_soon(self, client: str, until: int) -> None:
        """Let what is renewed for *client*, which is gone, come back at *until* (microseconds)."""
        for run in self.in_flight:
            if run.away and run.terms.renew and run.terms.client == client:
                self._set_until(run, until=min(until, run.terms.until), renew=False)

    # What comes next

    def returning(self, count: int) -> list[int]:
        """At most *count* ids that came back and may be given again, the first first; a topic without order."""
        found: list[int] = []
        while self._waiting and len(found) < count:
            first, last = heapq.heappop(self._waiting)
            for run in self.in_flight.within(first, last):
                if len(found) == count:
                    break
                if not run.away:
                    begin, end = run.overlap(max(first, found[-1] + 1) if found else first, last)
                    found.extend(range(begin, min(end + 1, begin + count - len(found))))
            if len(found) == count and found[-1] < last:
                heapq.heappush(self._waiting, (found[-1] + 1, last))
        return found

    @property
    def has_returning(self) -> bool:
        """Whether :meth:`returning` or :meth:`next_in_order` may have something to give."""
        return bool(self._waiting) or bool(self._group_queues.free(1, consecutive=False))

    def return_unused(self, ids: IdRanges) -> None:
        """Ids from the result of :meth:`returning` were not used after all."""
        for first, last in ids:
            heapq.heappush(self._waiting, (first, last))

    def enqueue(self, number: int, group: str) -> None:
        """The message *number* of the message group *group* is next to be looked at; a topic with order."""
        if number not in self.done:
            self._group_queues.add(number, group)
        self.next = number + 1

    @property
    def queued(self) -> int:
        """How many messages are queued by message group."""
        return len(self._group_queues)

    def reclaim_attempt(self, attempt_id: str) -> None:
        """Let what the attempt was given be given again: its receiver repeats it, and so never got the answer."""
        for first, last in self._attempts.pop(attempt_id, ()):
            for run in self.in_flight.within(first, last):
                if run.away and run.is_repeated_by(attempt_id):
                    self._come_back(run)

    def next_in_order(self, count: int, *, consecutive: bool) -> list[int]:
        """At most *count* ids that may be given now; a topic with order.

        Of every message group the first message that is not done, if no client has it; with *consecutive* also those
        that follow it.
        """
        return self._group_queues.free(count, consecutive=consecutive)

    def lag(self, first_id: int, last_id: int) -> int:
        """How many of the messages *first_id* to *last_id*, all that the topic has, were never given."""
        open_ones = sum(map(len, self.done.missing(IdRange(first_id, last_id))))
        seen = (run.overlap(first_id, last_id) for run in self.in_flight.within(first_id, last_id))
        return open_ones - sum(last - first + 1 for first, last in seen)

    @property
    def last_seen(self) -> int:
        """The largest id that was ever in flight or done."""
        return self._seen_to

    def are_new_from(self, number: int) -> bool:
        """Whether neither the message *number* nor any behind it is done or in flight."""
        return number > self._seen_to

    def is_new(self, number: int) -> bool:
        """Whether the message *number* is neither done nor in flight."""
        return self.in_flight.find(number) is None and number not in self.done

    def attempts(self, number: int) -> int:
        """How often the message *number* was delivered; 0 if it is not in flight."""
        run = self.in_flight.find(number)
        return 0 if run is None else run.attempts

    def token(self, number: int) -> int:
        """The token under which the message *number* was lent last; 0 if it is not in flight."""
        run = self.in_flight.find(number)
        return 0 if run is None else run.terms.token

    # What was decided

    def lease(self, ids: IdRanges, terms: LeaseTerms) -> None:
        """The messages *ids* are given out on *terms*: one more attempt for each that is not repeated."""
        for first, last in ids:
            self.in_flight.lease(first, last, terms)
            self._timers.set(terms.until, first, last)
            self._seen_to = max(self._seen_to, last)
        self._note_attempt(terms.attempt_id, ids)

    def set_connection(self, ids: IdRanges, connection: str) -> None:
        """The answer by *connection* carries the messages *ids*, which were lent just now."""
        for first, last in ids:
            for run in self.in_flight.within(first, last):
                run.terms = msgspec.structs.replace(run.terms, connection=connection)

    def held(self, first: int, last: int, token: int, now: int) -> IdRanges:
        """Which of the messages *first* to *last* the consumer has at *now* (microseconds) that was given *token*."""
        return [
            run.overlap(first, last)
            for run in self.in_flight.within(first, last)
            if run.away and run.terms.token == token and run.terms.until > now
        ]

    def finish(self, ids: IdRanges) -> None:
        """The messages *ids* are done: acknowledged, dead, or not wanted."""
        for first, last in ids:
            self.done.add(first, last)
            self._seen_to = max(self._seen_to, last)
            self.in_flight.remove(first, last)
            if self.fifo:
                self._group_queues.remove(first, last)

    def hide(self, number: int, token: int, until: int) -> None:
        """The message *number* comes back at *until* (microseconds); from now on *token* is the one that counts."""
        self._set_until(self.in_flight.separate(number), until, token=token, renew=False, attempt_id="")

    def postpone(self, ids: IdRanges, until: int) -> None:
        """Those of the messages *ids* that are in flight come back at *until* (microseconds), in memory only: the token
        stays, by which a dead letter is recognised that was stored although that failed."""
        for first, last in ids:
            for run in list(self.in_flight.within(first, last)):
                part = run.part(*run.overlap(first, last))
                self.in_flight.put(part)
                self._set_until(part, until, renew=False)

    def reset_offset(self, next_id: int) -> None:
        """Reset to *next_id*: all earlier messages are done, it and later ones are not."""
        self.in_flight.clear()
        self._timers.reset()
        self._waiting.clear()
        self._attempts.clear()
        self._group_queues = MessageGroupQueues(self._is_free)
        self.done = Frontier(next_id - 1)
        self.next = next_id
        self._seen_to = next_id - 1

    def end_recovery(self, now: int) -> None:
        """The journal was read: what the broker renewed is renewed until *now*, everything else is examined anew.

        That is how it was when the broker ended, and all connections with it.
        """
        for run in self.in_flight:
            if run.away and run.terms.renew:
                run.terms = msgspec.structs.replace(run.terms, until=self._renewed_until(run.terms.until, now))
        self.restore(*self.keep())
        self._group_queues = MessageGroupQueues(self._is_free)
        self.next = self.done.pointer + 1

    def keep(self, last_id: int = MAX_ID) -> tuple[int, list[tuple[int, int]], list[InFlightRun]]:
        """All there is to know, for a snapshot: the pointer, what is done beyond it, and what is in flight; of the
        messages up to *last_id*.
        """
        done = self.done.up_to(last_id)
        runs = [run.part(*run.overlap(1, last_id)) for run in self.in_flight.within(1, last_id)]
        return done.pointer, [(ids.first, ids.last) for ids in done.ahead], runs

    def restore(self, pointer: int, ahead: IdRanges, runs: Iterable[InFlightRun]) -> None:
        """Be as :meth:`keep` said."""
        self.reset_offset(pointer + 1)
        self.done = Frontier(pointer, [IdRange(*ids) for ids in ahead])
        self._seen_to = max([pointer, *(last for _, last in ahead)])
        self.restore_in_flight(runs)

    def restore_in_flight(self, runs: Iterable[InFlightRun]) -> None:
        """Have *runs*, too: they are further ones of :meth:`keep`."""
        for run in runs:
            self.in_flight.put(run)
            self._seen_to = max(self._seen_to, run.last)
            if run.away:
                self._timers.set(run.terms.until, run.first, run.last)
                self._note_attempt(run.terms.attempt_id, [(run.first, run.last)])
            elif not self.fifo:
                heapq.heappush(self._waiting, (run.first, run.last))

    def _renewed_until(self, until: int, now: int) -> int:
        """Until when a message is hidden at *now* that has been renewed again and again since *until*."""
        return until if now < until else until + self._renew_step * ((now - until) // self._renew_step + 1)

    def _is_free(self, number: int) -> bool:
        run = self.in_flight.find(number)
        return run is None or not run.away

    def _set_until(self, run: InFlightRun, until: int, **terms: Any) -> None:
        """A consumer has *run* until *until*, with these changes of its *terms*."""
        run.away, run.terms = True, msgspec.structs.replace(run.terms, until=until, **terms)
        self._timers.set(until, run.first, run.last)

    def _note_attempt(self, attempt_id: str, ids: IdRanges) -> None:
        if not attempt_id:
            return
        self._attempts.setdefault(attempt_id, []).extend(ids)
        if len(self._attempts) > len(self.in_flight) + _SPARE:
            self._attempts.clear()
            for run in self.in_flight:
                if run.away and run.terms.attempt_id:
                    self._attempts.setdefault(run.terms.attempt_id, []).append((run.first, run.last))

    def _come_back(self, run: InFlightRun) -> None:
        run.away = False
        if self.fifo:
            for number in range(run.first, run.last + 1):
                self._group_queues.release(number)
        else:
            heapq.heappush(self._waiting, (run.first, run.last))
