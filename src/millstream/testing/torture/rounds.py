"""Rounds of a torture: start, wait, kill, look."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator

from millstream.core.clock import Clock, SystemClock
from millstream.log import LogError, LogSpec, LogStore, open_store
from millstream.testing.services import Server
from millstream.testing.torture.checks import (
    Confirmed,
    Delivery,
    Order,
    check_confirmed,
    check_delivery,
    read_confirmed,
)
from millstream.testing.torture.child import Child
from millstream.testing.torture.plan import CONSUMER, LOG, PRODUCER, WINDOW_SECONDS, Plan, Report
from millstream.testing.torture.scratch import Scratch

_WRITER, _READER = "millstream.testing.torture.writer", "millstream.testing.torture.reader"
_LEASE_SECONDS = 15
_SPEC = LogSpec(LOG)
_MOST_PROBLEMS = 100


def torture(
    scratch: Scratch,
    plan: Plan,
    *,
    server: Server | None = None,
    clock: Clock | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> Report:
    """Torture a log in *scratch* as *plan* says; *server*, if it is given, is killed and started again as well.

    *tell* is called with the number of kills after each. Stops at the first problem, so that it can be looked at.
    """
    with contextlib.closing(_Torture(scratch, plan, server, clock or SystemClock())) as work:
        while work.goes_on():
            work.round()
            tell(work.kills)
        return work.report()


class _Torture:
    def __init__(self, scratch: Scratch, plan: Plan, server: Server | None, clock: Clock) -> None:
        self._scratch = scratch
        self._plan = plan
        self._server = server
        self._clock = clock
        self._begin = clock.monotonic()
        self._draw = random.Random(plan.seed)
        self._order = Order()
        self._problems: list[str] = []
        self._runs = self._writers = self._readers = self._databases = 0
        self._confirmed = self._delivered = self._redelivered = self._given = 0
        self._reader: Child | None = None
        self._reader_pointer = 0
        self._server_was_away = False

    @property
    def kills(self) -> int:
        return self._writers + self._readers + self._databases

    def goes_on(self) -> bool:
        spent = self._clock.monotonic() - self._begin
        in_time = self._plan.seconds is None or spent < self._plan.seconds
        return not self._problems and in_time and self.kills < self._plan.kills

    def round(self) -> None:
        """Let a writer write, and a reader read; kill one of them, or several; look at what is there."""
        if self._reader is None:
            self._start_reader()
        self._runs += 1
        count, threads = self._draw.choice([1, 7, 300]), self._draw.choice([1, 1, 1, 3])
        with Child(_WRITER, self._scratch.url, self._runs, count, _LEASE_SECONDS, threads) as writer:
            if self._await(writer, self._draw.randint(2, 20)) and self._server and self._draw.random() < 0.3:
                self._kill_server(self._server)
                self._await(writer, len(writer.lines) + self._draw.randint(1, 20))
            self._clock.sleep(self._draw.random() * 0.01)
            if self._draw.random() < 0.3:
                self._kill_reader()
            writer.kill()
            self._writers += 1
        self._look(read_confirmed(self._runs, writer.lines))

    def report(self) -> Report:
        """What was done and found; the whole log is checked once more."""
        self._kill_reader()
        with self._store() as store:
            log = store.log(_SPEC)
            verification = log.verify()
            self._note(verification.problems)
            stored = log.last_id
        if verification.messages != stored:
            self._note([f"{verification.messages} messages verify of {stored}"])
        return Report(
            self._scratch.shown, self._plan.seed, round(self._clock.monotonic() - self._begin, 3), self._writers,
            self._readers, self._databases, self._confirmed, stored, self._delivered, self._redelivered,
            WINDOW_SECONDS, tuple(self._problems),
        )  # fmt: skip

    def close(self) -> None:
        """Leave no process behind."""
        if self._reader is not None:
            self._reader.kill()

    def _look(self, confirmed: list[Confirmed]) -> None:
        self._confirmed += len(confirmed)
        with self._store() as store:
            log = store.log(_SPEC)
            try:
                with log.writer(PRODUCER) as writer:
                    sequence, last_id = writer.sequence, writer.last_id
            except LogError as error:
                self._note([f"a new writer cannot begin: {error}"])
                return
            self._note(check_confirmed(log, confirmed))
            self._note(self._order.check(log))
            if (self._order.sequence, self._order.checked) != (sequence, last_id):
                self._note([f"the log ends at {self._order} and says {last_id}, sequence {sequence}"])

    def _start_reader(self) -> None:
        with self._store() as store:
            self._reader_pointer = store.log(_SPEC).pointer(CONSUMER)
        self._redelivered = max(self._redelivered, self._given - self._reader_pointer)
        self._reader = Child(_READER, self._scratch.url, self._draw.choice([1, 50, 65_536]))

    def _kill_reader(self) -> None:
        if self._reader is None:
            return
        if self._reader.has_ended:
            self._note([f"a reader ended by itself: {self._reader.errors}"])
        killed_at = self._clock.monotonic()
        self._reader.kill()
        self._readers += 1
        delivery = Delivery(self._reader_pointer, self._reader.lines, killed_at)
        self._reader = None
        self._given = delivery.last_given
        self._delivered += sum(last - first + 1 for first, last in delivery.given)
        with self._store() as store:
            pointer = store.log(_SPEC).pointer(CONSUMER)
        self._note(check_delivery(delivery, pointer, server_was_away=self._server_was_away))
        self._server_was_away = False

    def _kill_server(self, server: Server) -> None:
        server.kill()
        self._databases += 1
        self._server_was_away = True
        server.start()

    def _await(self, writer: Child, lines: int) -> bool:
        if writer.wait_for(lines):
            return True
        self._note([f"a writer said nothing more, after {len(writer.lines)} lines: {writer.errors}"])
        return False

    def _note(self, problems: Iterable[str]) -> None:
        for problem in problems:
            if len(self._problems) < _MOST_PROBLEMS:
                self._problems.append(problem)

    @contextlib.contextmanager
    def _store(self) -> Iterator[LogStore]:
        with open_store(self._scratch.url) as store:
            yield store
