"""Rounds of a torture: start, wait, kill, look."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable

from millstream.core.clock import Clock, SystemClock
from millstream.log import Log, LogError, LogSpec
from millstream.stores.tiers import open_log_store
from millstream.testing.services import Server
from millstream.testing.torture.checks import (
    ConfirmedPack,
    OrderCheck,
    ReaderDelivery,
    check_confirmed,
    check_delivery,
    read_confirmed,
)
from millstream.testing.torture.plan import CONSUMER, LOG, PRODUCER, WINDOW_SECONDS, TorturePlan, TortureReport
from millstream.testing.torture.scratch import ScratchStore
from millstream.testing.torture.watched_process import WatchedProcess

_WRITER, _READER = "millstream.testing.torture.writer", "millstream.testing.torture.reader"
_LEASE_SECONDS = 15
_SPEC = LogSpec(LOG)
_MOST_PROBLEMS = 100


def torture(
    scratch: ScratchStore,
    plan: TorturePlan,
    *,
    server: Server | None = None,
    clock: Clock | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> TortureReport:
    """Torture a log in *scratch* as *plan* says; *server*, if it is given, is killed and started again as well.

    *tell* is called with the number of kills after each. Stops at the first problem, so that it can be looked at.
    """
    with contextlib.closing(_Torture(scratch, plan, server, clock or SystemClock())) as work:
        while work.goes_on():
            work.round()
            tell(work.kills)
        return work.report()


class _Torture:
    def __init__(self, scratch: ScratchStore, plan: TorturePlan, server: Server | None, clock: Clock) -> None:
        self._scratch = scratch
        self._plan = plan
        self._server = server
        self._clock = clock
        self._begin = clock.monotonic()
        self._draw = random.Random(plan.seed)
        self._order = OrderCheck()
        self._problems: list[str] = []
        self._runs = self._writers = self._readers = self._databases = 0
        self._confirmed = self._stored = self._delivered = self._redelivered = self._given = 0
        self._reader: WatchedProcess | None = None
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
        with WatchedProcess(
            _WRITER, self._scratch.url, self._runs, count, _LEASE_SECONDS, threads, self._plan.ahead
        ) as writer:
            if self._await(writer, self._draw.randint(2, 20)) and self._server and self._draw.random() < 0.3:
                self._kill_server(self._server)
                self._await(writer, len(writer.lines) + self._draw.randint(1, 20))
            self._clock.sleep(self._draw.random() * 0.01)
            if self._draw.random() < 0.3:
                self._kill_reader()
            if writer.has_ended:
                self._note([f"a writer ended by itself: {writer.errors}"])
            writer.kill()
            self._writers += 1
        confirmed = read_confirmed(self._runs, writer.lines)
        self._confirmed += len(confirmed)
        self._look_at_log(lambda log: self._check(log, confirmed))

    def report(self) -> TortureReport:
        """What was done and found; the whole log is checked once more."""
        self._kill_reader()
        self._look_at_log(self._verify)
        return TortureReport(
            store=self._scratch.shown,
            seed=self._plan.seed,
            seconds=round(self._clock.monotonic() - self._begin, 3),
            writers_killed=self._writers,
            readers_killed=self._readers,
            databases_killed=self._databases,
            packs_confirmed=self._confirmed,
            messages_stored=self._stored,
            messages_delivered=self._delivered,
            redelivered_most=self._redelivered,
            window=WINDOW_SECONDS,
            problems=tuple(self._problems),
        )

    def close(self) -> None:
        """Leave no process behind."""
        if self._reader is not None:
            self._reader.kill()

    def _check(self, log: Log, confirmed: list[ConfirmedPack]) -> None:
        with log.writer(PRODUCER) as writer:
            said = (writer.last_id, writer.sequence)
        self._note(check_confirmed(log, confirmed))
        self._note(self._order.check(log))
        found = (self._order.checked, self._order.sequence)
        if found != said:
            self._note([f"the last id and sequence are {said} to a new writer, and {found} were read"])

    def _verify(self, log: Log) -> None:
        verification, self._stored = log.verify(), log.last_id
        self._note(verification.problems)
        if verification.messages != self._stored:
            self._note([f"{verification.messages} messages verify of {self._stored}"])

    def _start_reader(self) -> None:
        self._reader_pointer = self._pointer()
        self._redelivered = max(self._redelivered, self._given - self._reader_pointer)
        self._reader = WatchedProcess(_READER, self._scratch.url, self._draw.choice([1, 50, 65_536]))

    def _kill_reader(self) -> None:
        if self._reader is None:
            return
        if self._reader.has_ended:
            self._note([f"a reader ended by itself: {self._reader.errors}"])
        killed_at = self._clock.monotonic()
        self._reader.kill()
        self._readers += 1
        delivery = ReaderDelivery(self._reader_pointer, self._reader.lines, killed_at)
        self._reader = None
        self._given = delivery.last_given
        self._delivered += sum(last - first + 1 for first, last in delivery.given)
        self._note(check_delivery(delivery, self._pointer(), server_was_away=self._server_was_away))
        self._server_was_away = False

    def _kill_server(self, server: Server) -> None:
        server.kill()
        self._databases += 1
        self._server_was_away = True
        server.start()

    def _await(self, writer: WatchedProcess, lines: int) -> bool:
        if writer.wait_for(lines):
            return True
        self._note([f"a writer said nothing more, after {len(writer.lines)} lines: {writer.errors}"])
        return False

    def _note(self, problems: Iterable[str]) -> None:
        for problem in problems:
            if len(self._problems) < _MOST_PROBLEMS:
                self._problems.append(problem)

    def _pointer(self) -> int:
        found: list[int] = []
        self._look_at_log(lambda log: found.append(log.pointer(CONSUMER)))
        return found[0] if found else 0

    def _look_at_log(self, work: Callable[[Log], None]) -> None:
        """Open the log as whoever comes next does; that this fails is what a torture is there to find."""
        try:
            with open_log_store(self._scratch.url) as store:
                work(store.log(_SPEC))
        except LogError as error:
            self._note([f"the log cannot be looked at: {error}"])
