"""Regular upkeep of all logs of a store: compact commits, move older blocks, and trim old ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError
from millstream.log.errors import StorageUnavailableError
from millstream.log.kinds import KINDS, SYSTEM_KINDS
from millstream.log.log import Log
from millstream.log.spec import LogSpec
from millstream.log.store import LogStore
from millstream.log.tiering import TieringResult
from millstream.log.upkeep.retention import RetentionPlan
from millstream.log.upkeep.retention_enforcer import RetentionEnforcer
from millstream.log.upkeep.rules import LogRule, apply_retention, apply_tiering

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class UpkeepResult(msgspec.Struct, frozen=True):
    """The result for one log, by its stored policies; ``error`` names what failed, and why."""

    log: str
    moved: TieringResult | None = None
    trimmed: RetentionPlan | None = None
    error: str | None = None
    compacted: TieringResult | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """The failure and its reason."""
        return (*(self.trimmed.held if self.trimmed else ()), *([self.error] if self.error else []))


def run_upkeep(
    store: LogStore, clock: Clock, rules: Sequence[LogRule] = (), *, stopped: Callable[[], bool] = bool
) -> Iterator[UpkeepResult]:
    """Move and trim the logs of *store* that have a policy for it, each once; a log that fails keeps no other back.

    Logs in a bucket are compacted before that.

    The policies are those that are kept with the logs; what *rules* say of a log is kept with it first. Safe to run
    from anywhere, as often as wished, and to be killed. Once *stopped* returns True, nothing further is begun.
    """
    for name, kind in store.kinds().items():
        if stopped():
            return
        try:
            spec = LogSpec(name, kind=kind) if kind in KINDS else LogSpec(name)
            log = store.log(spec, create=False)
        except StorageUnavailableError:
            raise  # the other logs cannot be reached either
        except MillstreamError as error:
            yield UpkeepResult(name, error=str(error))
            continue
        done = _run_upkeep_of(log, clock, rules, stopped)
        if done is not None:
            yield done


def _run_upkeep_of(
    log: Log, clock: Clock, rules: Sequence[LogRule], stopped: Callable[[], bool]
) -> UpkeepResult | None:
    """Do all steps: damaged commits or a tier that cannot be reached must not keep the log from being trimmed."""
    compacted, not_compacted = _attempt(lambda: _compact(log, stopped))
    moved, not_moved = _attempt(lambda: _move(log, rules, stopped))
    trimmed, not_trimmed = _attempt(lambda: _trim(log, clock, rules, stopped))
    errors = dict.fromkeys(error for error in (not_moved, not_trimmed, not_compacted) if error)
    if not errors and compacted is None and moved is None and trimmed is None:
        return None
    return UpkeepResult(log.name, moved, trimmed, "; ".join(errors) or None, compacted)


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """The result of *work*, or why it failed."""
    try:
        return work(), None
    except MillstreamError as error:
        return None, str(error)


def _compact(log: Log, stopped: Callable[[], bool]) -> TieringResult | None:
    done = log.compact(stopped=stopped)
    return done if done.objects else None


def _move(log: Log, rules: Sequence[LogRule], stopped: Callable[[], bool]) -> TieringResult | None:
    apply_tiering(log, rules)
    return log.move_blocks(stopped=stopped) if log.tiering is not None else None


def _trim(log: Log, clock: Clock, rules: Sequence[LogRule], stopped: Callable[[], bool]) -> RetentionPlan | None:
    apply_retention(log, rules)  # if it fails, nothing is trimmed by the rule before it, which may keep less
    is_due = log.retention is not None and log.kind not in SYSTEM_KINDS and not stopped()  # keepers trim theirs
    return RetentionEnforcer(log, clock).run_once() if is_due else None


class UpkeepThread:
    """Does the upkeep of the logs of *store* every *seconds*, in a separate thread, while its block is open.

    *say* gets a line when something was not done that was done before. At the end of the block what is under way (an
    object that is being moved, a log that is being trimmed) is finished.
    """

    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        rules: Sequence[LogRule] = (),
        *,
        seconds: float,
        say: Callable[[str], object] = _log.warning,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._seconds = seconds
        self._say = say
        self._changed = threading.Condition()
        self._stopping = False
        self._said: dict[str, tuple[str, ...]] = {}
        self._thread = threading.Thread(target=self._run, name="millstream-log-upkeep")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._run_once()
            with self._changed:
                if not self._stopping:
                    self._clock.wait(self._changed, self._seconds)

    def _run_once(self) -> None:
        try:
            solved = set(self._said)
            for done in run_upkeep(self._store, self._clock, self._rules, stopped=lambda: self._stopping):
                self._tell(done.log, done.problems)
                solved.discard(done.log)
            for name in solved:
                self._tell(name, ())
        except Exception as error:  # whatever it is, the next turn may do better
            if not isinstance(error, MillstreamError):
                _log.exception("the upkeep of %s failed", self._store.url)
            self._tell(self._store.url, (str(error),))

    def _tell(self, what: str, problems: tuple[str, ...]) -> None:
        if problems != self._said.get(what, ()):
            self._said[what] = problems
            for problem in problems:
                self._say(f"upkeep of {what} failed: {problem}")
