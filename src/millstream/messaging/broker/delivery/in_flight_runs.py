"""Messages that a consumer group has been given and that are not done, as runs of ids.

Messages that are received together differ only in their ids, and mostly stay alike until they are done. So they are one
entry here, however many they are; only those that become different get entries of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec

_last = attrgetter("last")


class LeaseTerms(msgspec.Struct, frozen=True):
    """The receiver of messages and its conditions; times in microseconds.

    ``token`` proves that a receipt handle is the current one. ``client`` has the messages until ``until``; the answer
    that carried them went by ``connection``. With ``renew`` the broker prolongs that, from ``at`` on, while that
    connection is there; which one it was is forgotten when the broker ends.
    """

    token: int
    until: int
    at: int
    client: str = ""
    renew: bool = False
    attempt_id: str = ""
    connection: str = ""


class InFlightRun(msgspec.Struct):
    """The messages ``first`` to ``last``, all delivered ``attempts`` times, and the last time on the same ``terms``."""

    first: int
    last: int
    attempts: int
    terms: LeaseTerms
    away: bool = True
    """Whether a consumer has them; otherwise they wait to be given again."""

    def __len__(self) -> int:
        return self.last - self.first + 1

    def is_repeated_by(self, attempt_id: str) -> bool:
        """Whether the attempt *attempt_id* was given them before: who repeats an attempt never got the answer."""
        return bool(attempt_id) and self.terms.attempt_id == attempt_id

    def is_continued_by(self, other: InFlightRun) -> bool:
        """Whether *other* follows this run and is like it, so that both can be one."""
        mine, its = (self.last + 1, self.attempts, self.away), (other.first, other.attempts, other.away)
        return mine == its and self.terms == other.terms

    def overlap(self, first: int, last: int) -> tuple[int, int]:
        """The ids that it has of *first* to *last*."""
        return max(self.first, first), min(self.last, last)

    def part(self, first: int, last: int) -> InFlightRun:
        """Its messages *first* to *last* as a run of their own."""
        return InFlightRun(first, last, self.attempts, self.terms, self.away)


class InFlightRuns:
    """Runs in the order of their ids; no message is in two of them. To find one takes O(log n) of n runs."""

    def __init__(self) -> None:
        self.messages = 0
        """Number of messages in all runs."""
        self._runs: list[InFlightRun] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[InFlightRun]:
        return iter(self._runs)

    def find(self, number: int) -> InFlightRun | None:
        """The run that has the message *number*."""
        return next(self.within(number, number), None)

    def within(self, first: int, last: int) -> Iterator[InFlightRun]:
        """The runs that have any of the messages *first* to *last*, whole. Do not add or remove runs meanwhile."""
        position = bisect_left(self._runs, first, key=_last)
        while position < len(self._runs) and self._runs[position].first <= last:
            yield self._runs[position]
            position += 1

    def lease(self, first: int, last: int, terms: LeaseTerms) -> None:
        """Give out the messages *first* to *last* on *terms*: one more attempt for each that is not repeated."""
        leased: list[InFlightRun] = []

        def add(begin: int, end: int, attempts: int) -> None:
            if leased and leased[-1].attempts == attempts:
                leased[-1].last = end
            elif begin <= end:
                leased.append(InFlightRun(begin, end, attempts, terms))

        begin = first
        for run in self.within(first, last):
            add(begin, run.first - 1, 1)  # messages that were never given before
            add(*run.overlap(first, last), run.attempts + (not run.is_repeated_by(terms.attempt_id)))
            begin = run.last + 1
        add(begin, last, 1)
        self._replace(first, last, leased)

    def put(self, run: InFlightRun) -> None:
        """Add *run*, in the place of what there was about its messages."""
        self._replace(run.first, run.last, [run])

    def remove(self, first: int, last: int) -> None:
        """Forget the messages *first* to *last*."""
        self._replace(first, last, [])

    def separate(self, number: int) -> InFlightRun:
        """The message *number*, which is in flight, as a run of its own."""
        (run,) = self.within(number, number)
        if len(run) > 1:
            run = run.part(number, number)
            self.put(run)
        return run

    def clear(self) -> None:
        """Forget all messages."""
        self._runs.clear()
        self.messages = 0

    def _replace(self, first: int, last: int, runs: Sequence[InFlightRun]) -> None:
        """Put *runs*, which have no other messages than *first* to *last*, in the place of all runs about these."""
        begin = end = bisect_left(self._runs, first, key=_last)
        while end < len(self._runs) and self._runs[end].first <= last:
            end += 1
        old, new = self._runs[begin:end], list(runs)
        if old and old[0].first < first:
            new.insert(0, old[0].part(old[0].first, first - 1))
        if old and old[-1].last > last:
            new.append(old[-1].part(last + 1, old[-1].last))
        self._runs[begin:end] = new
        self.messages += sum(map(len, new)) - sum(map(len, old))
