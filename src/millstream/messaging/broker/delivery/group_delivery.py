"""The state of one consumer group of one topic: a pure state machine without storage, time or threads.

Every change that has to survive is an event of the journal; the same methods apply it when it is decided and when the
journal is read again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.log import MAX_ID, Frontier, IdRange
from millstream.messaging.broker.delivery.expiry_timers import ExpiryTimers
from millstream.messaging.broker.delivery.in_flight_message import InFlightMessage
from millstream.messaging.broker.delivery.message_group_queues import MessageGroupQueues

RENEW_STEP = 60 * MICROSECONDS
"""For how long a message that the broker renews is hidden at a time, where nothing else is said."""

RENEW_LONGEST = 3 * 3600 * MICROSECONDS
"""For how long a message is renewed at most."""

_SPARE = 1_000
"""Number of outdated timers and attempts that are kept in addition to one for each message in flight."""

IdRanges = Sequence[tuple[int, int]]


class LeaseTerms(msgspec.Struct, frozen=True):
    """The receiver of messages and its conditions; times in microseconds. See :class:`InFlightMessage`."""

    token: int
    until: int
    at: int
    client: str = ""
    renew: bool = False
    attempt_id: str = ""


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
        self.flights: dict[int, InFlightMessage] = {}
        self._waiting: list[int] = []  # ids to be given again, of topics without order
        self._timers = ExpiryTimers(self._is_current)
        self._group_queues = MessageGroupQueues(self._is_free)
        self._attempts: dict[str, list[int]] = {}  # what was given by attempt id; outdated ones are skipped
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
            for flight in [self.flights[number] for number in self._timers.take()]:
                may_be_renewed = flight.renew and now < flight.since + RENEW_LONGEST
                if may_be_renewed and is_connected(flight.client, flight.connection):
                    self._lease_until(flight, self._renewed_until(flight.until, now))
                else:
                    self._come_back(flight)

    def expire_soon(self, client: str, until: int) -> None:
        """Let what is renewed for *client*, which is gone, come back at *until* (microseconds)."""
        for flight in self.flights.values():
            if flight.away and flight.renew and flight.client == client:
                flight.renew = False
                self._lease_until(flight, min(until, flight.until))

    # What comes next

    def returning(self, count: int) -> list[int]:
        """At most *count* ids that came back and may be given again, the first first; a topic without order."""
        found: list[int] = []
        while self._waiting and len(found) < count:
            number = heapq.heappop(self._waiting)
            flight = self.flights.get(number)
            if flight is not None and not flight.away and (not found or found[-1] != number):
                found.append(number)
        return found

    def return_unused(self, ids: Iterable[int]) -> None:
        """The result of :meth:`returning` was not used after all."""
        for number in ids:
            heapq.heappush(self._waiting, number)

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
        for number in self._attempts.pop(attempt_id, ()):
            flight = self.flights.get(number)
            if flight is not None and flight.away and flight.attempt_id == attempt_id:
                self._come_back(flight)

    def next_in_order(self, count: int, *, consecutive: bool) -> list[int]:
        """At most *count* ids that may be given now; a topic with order.

        Of every message group the first message that is not done, if no client has it; with *consecutive* also those
        that follow it.
        """
        return self._group_queues.free(count, consecutive=consecutive)

    def lag(self, first_id: int, last_id: int) -> int:
        """How many of the messages *first_id* to *last_id*, all that the topic has, were never given."""
        open_ones = sum(map(len, self.done.missing(IdRange(first_id, last_id))))
        return open_ones - sum(first_id <= number for number in self.flights)

    @property
    def last_seen(self) -> int:
        """The largest id that was ever in flight or done."""
        return self._seen_to

    def are_new_from(self, number: int) -> bool:
        """Whether neither the message *number* nor any behind it is done or in flight."""
        return number > self._seen_to

    def is_new(self, number: int) -> bool:
        """Whether the message *number* is neither done nor in flight."""
        return number not in self.flights and number not in self.done

    # What was decided

    def lease(self, ids: Iterable[int], loan: LeaseTerms) -> None:
        """The messages *ids* are given out on the terms of *loan*: one more attempt for each that is not repeated."""
        flights, numbers = self.flights, list(ids)
        terms = (loan.until, loan.token, loan.client, loan.renew, loan.at, loan.attempt_id, True)
        for number in numbers:
            known = flights.get(number)
            attempts = 1 if known is None else known.attempts + (not known.is_repeated_by(loan.attempt_id))
            flights[number] = InFlightMessage(number, attempts, *terms)
        if numbers:
            self._seen_to = max(self._seen_to, *numbers)
            self._set_timer(loan.until, numbers)
            self._note_attempt(loan.attempt_id, numbers)

    def set_connection(self, ids: IdRanges, connection: str) -> None:
        """The answer by *connection* carries the messages *ids*, which were lent just now."""
        for first, last in ids:
            for number in range(first, last + 1):
                self.flights[number].connection = connection

    def is_lease_current(self, number: int, token: int, now: int) -> bool:
        """Whether *token* is that of the consumer that has the message *number* at *now* (microseconds)."""
        flight = self.flights.get(number)
        return flight is not None and flight.away and flight.token == token and flight.until > now

    def finish(self, ids: IdRanges) -> None:
        """The messages *ids* are done: acknowledged, dead, or not wanted."""
        for first, last in ids:
            self.done.add(first, last)
            self._seen_to = max(self._seen_to, last)
            if last - first < len(self.flights):
                for number in range(first, last + 1):
                    self._leave(number)
            else:
                for number in [number for number in self.flights if first <= number <= last]:
                    self._leave(number)

    def hide(self, number: int, token: int, until: int) -> None:
        """The message *number* comes back at *until* (microseconds); from now on *token* is the one that counts."""
        flight = self.flights[number]
        flight.token, flight.renew, flight.attempt_id = token, False, ""
        self._lease_until(flight, until)

    def reset_offset(self, next_id: int) -> None:
        """Reset to *next_id*: all earlier messages are done, it and later ones are not."""
        self.flights.clear()
        self._timers.reset([])
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
        for flight in self.flights.values():
            if flight.away and flight.renew:
                flight.until = self._renewed_until(flight.until, now)
        self.restore(*self.keep())
        self._group_queues = MessageGroupQueues(self._is_free)
        self.next = self.done.pointer + 1

    def keep(self, last_id: int = MAX_ID) -> tuple[int, list[tuple[int, int]], list[InFlightMessage]]:
        """All there is to know, for a snapshot: the pointer, what is done beyond it, and what is in flight; of the
        messages up to *last_id*.
        """
        done = self.done.up_to(last_id)
        flights = [flight for flight in self.flights.values() if flight.id <= last_id]
        return done.pointer, [(ids.first, ids.last) for ids in done.ahead], flights

    def restore(self, pointer: int, ahead: IdRanges, flights: Iterable[InFlightMessage]) -> None:
        """Be as :meth:`keep` said."""
        self.reset_offset(pointer + 1)
        self.done = Frontier(pointer, [IdRange(*ids) for ids in ahead])
        self._seen_to = max([pointer, *(last for _, last in ahead)])
        for flight in flights:
            self.flights[flight.id] = flight
            self._seen_to = max(self._seen_to, flight.id)
            if flight.away:
                self._lease_until(flight, flight.until)
                self._note_attempt(flight.attempt_id, [flight.id])
            elif not self.fifo:
                heapq.heappush(self._waiting, flight.id)

    def _renewed_until(self, until: int, now: int) -> int:
        """Until when a message is hidden at *now* that has been renewed again and again since *until*."""
        return until if now < until else until + self._renew_step * ((now - until) // self._renew_step + 1)

    def _is_current(self, until: int, number: int) -> bool:
        flight = self.flights.get(number)
        return flight is not None and flight.away and flight.until == until

    def _is_free(self, number: int) -> bool:
        flight = self.flights.get(number)
        return flight is None or not flight.away

    def _lease_until(self, flight: InFlightMessage, until: int) -> None:
        flight.away, flight.until = True, until
        self._set_timer(until, [flight.id])

    def _set_timer(self, until: int, ids: list[int]) -> None:
        self._timers.set(until, ids)
        if len(self._timers) > 2 * len(self.flights) + _SPARE:
            self._timers.reset((each.until, each.id) for each in self.flights.values() if each.away)

    def _note_attempt(self, attempt_id: str, ids: Iterable[int]) -> None:
        if not attempt_id:
            return
        self._attempts.setdefault(attempt_id, []).extend(ids)
        if len(self._attempts) > len(self.flights) + _SPARE:
            self._attempts.clear()
            for each in self.flights.values():
                if each.away and each.attempt_id:
                    self._attempts.setdefault(each.attempt_id, []).append(each.id)

    def _come_back(self, flight: InFlightMessage) -> None:
        flight.away = False
        if self.fifo:
            self._group_queues.release(flight.id)
        else:
            heapq.heappush(self._waiting, flight.id)

    def _leave(self, number: int) -> None:
        self.flights.pop(number, None)
        if self.fifo:
            self._group_queues.remove(number)


def to_ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """*ids* (ascending) as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for number in ids:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
