"""The progress of a consumer group as the broker kept it at first: an object for each message in flight.

It is the oracle for :class:`millstream.messaging.broker.delivery.group_delivery.GroupDelivery`, and looks at all
messages for each question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from millstream.messaging.broker.delivery.group_delivery import RENEW_LONGEST, RENEW_STEP
from millstream.messaging.broker.delivery.in_flight_runs import LeaseTerms


@dataclasses.dataclass
class MessageInFlight:
    """The members of a message in flight in a snapshot, and the connection that carried it; without its id."""

    attempts: int
    until: int
    token: int
    away: bool
    client: str = ""
    renew: bool = False
    since: int = 0
    attempt_id: str = ""
    connection: str = ""


class PerMessageDelivery:
    """The same methods as ``GroupDelivery``, with single ids instead of ranges."""

    def __init__(self) -> None:
        self.reset_offset(1)

    def reset_offset(self, next_id: int) -> None:
        self.next = next_id
        self.done = set(range(1, next_id))
        self.seen_to = next_id - 1
        self.flights: dict[int, MessageInFlight] = {}
        self.waiting: set[int] = set()
        self.queues: dict[str, list[int]] = {}  # ids by message group

    def lease(self, ids: Iterable[int], terms: LeaseTerms) -> None:
        for number in ids:
            known = self.flights.get(number)
            is_repeated = known is not None and terms.attempt_id != "" and known.attempt_id == terms.attempt_id
            attempts = 1 if known is None else known.attempts + (not is_repeated)
            self.flights[number] = MessageInFlight(
                attempts, terms.until, terms.token, True, terms.client, terms.renew, terms.at, terms.attempt_id
            )
            self.seen_to = max(self.seen_to, number)

    def finish(self, ids: Iterable[int]) -> None:
        for number in ids:
            self.done.add(number)
            self.seen_to = max(self.seen_to, number)
            self.flights.pop(number, None)
            for queue in self.queues.values():
                if number in queue:
                    queue.remove(number)

    def hide(self, number: int, token: int, until: int) -> None:
        flight = self.flights[number]
        flight.away, flight.until, flight.token, flight.renew, flight.attempt_id = True, until, token, False, ""

    def is_lease_current(self, number: int, token: int, now: int) -> bool:
        flight = self.flights.get(number)
        return flight is not None and flight.away and flight.token == token and flight.until > now

    def expire(self, now: int, is_connected: Callable[[str, str], bool]) -> None:
        for number, flight in self.flights.items():
            if flight.away and flight.until <= now:
                may_be_renewed = flight.renew and now < flight.since + RENEW_LONGEST
                if may_be_renewed and is_connected(flight.client, flight.connection):
                    flight.until = renewed_until(flight.until, now)
                else:
                    self._come_back(number)

    def expire_soon(self, client: str, until: int) -> None:
        for flight in self.flights.values():
            if flight.away and flight.renew and flight.client == client:
                flight.renew, flight.until = False, min(until, flight.until)

    def reclaim_attempt(self, attempt: str) -> None:
        for number, flight in self.flights.items():
            if flight.away and flight.attempt_id == attempt:
                self._come_back(number)

    def returning(self, count: int) -> list[int]:
        found = sorted(self.waiting & self.flights.keys())[:count]
        self.waiting.difference_update(found)
        return found

    def enqueue(self, number: int, group: str) -> None:
        if number not in self.done:
            self.queues.setdefault(group, []).append(number)
        self.next = number + 1

    def next_in_order(self, count: int, *, consecutive: bool) -> list[int]:
        found: list[int] = []
        for queue in sorted(filter(None, self.queues.values())):
            for number in queue if consecutive else queue[:1]:
                if len(found) == count or (number in self.flights and self.flights[number].away):
                    break
                found.append(number)
        return found

    def end_recovery(self, now: int) -> None:
        for flight in self.flights.values():
            if flight.away and flight.renew:
                flight.until = renewed_until(flight.until, now)
            flight.connection = ""
        self.waiting = {number for number, flight in self.flights.items() if not flight.away}
        self.queues = {}
        self.next = 1
        while self.next in self.done:
            self.next += 1

    def next_due(self) -> int | None:
        return min((flight.until for flight in self.flights.values() if flight.away), default=None)

    def lag(self, last_id: int) -> int:
        return sum(number not in self.done and number not in self.flights for number in range(1, last_id + 1))

    def _come_back(self, number: int) -> None:
        self.flights[number].away = False
        self.waiting.add(number)


def renewed_until(until: int, now: int) -> int:
    while until <= now:
        until += RENEW_STEP
    return until
