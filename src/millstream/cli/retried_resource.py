"""What a role of a node has open and works with: it is opened again, after a pause, where it could not be used."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from millstream.core.clock import Clock
from millstream.node.members.role_scheduler import may_pass

if TYPE_CHECKING:
    from millstream.cli.role_run import RoleRun

T = TypeVar("T")

_RETRY_SECONDS = 60.0
"""How long a role is suspended before it is tried again."""

_REPEAT_SECONDS = 3600.0
"""How long an error is not logged again."""

_log = logging.getLogger(__name__)


class RetriedResource(Generic[T]):
    """What *opened* returns, for the thread of *run* that works with it. It is closed at the end of the block.

    One of the errors *suspending* suspends this role alone, so that the rest of the process works on: *suspended* is
    called, and after a minute it is opened again. The same holds for errors that pass by themselves, unless the role
    has an owner among several processes: then it ends with such an error, and starts again where it is assigned.
    """

    def __init__(
        self,
        run: RoleRun,
        opened: Callable[[], AbstractContextManager[T]],
        suspending: tuple[type[Exception], ...],
        suspended: Callable[[Exception], object],
    ) -> None:
        self.current: T | None = None
        """What is open now, None while the role is suspended."""
        self._run, self._opened, self._suspending, self._suspended = run, opened, suspending, suspended
        self._stack = contextlib.ExitStack()

    def open(self, *, required: bool) -> None:
        """Open it before the thread starts. An error that suspends is raised only if *required*: the thread meets it
        again.
        """
        try:
            self.current = self._stack.enter_context(self._opened())
        except self._suspending as error:
            if required or may_pass(error):
                raise

    def use(self, work: Callable[[T], object]) -> None:
        """Let *work* use it until the role is stopped, again and again where it is suspended."""
        while not self._run.stopping.is_set():
            try:
                with self._stack.pop_all() as stack:
                    if self.current is None:
                        self.current = stack.enter_context(self._opened())
                    try:
                        work(self.current)
                    except BaseException:
                        self.current = None
                        raise
                    self._stack = stack.pop_all()  # open to other roles until this one ends
            except Exception as error:
                if not is_bearable(error, self._run, self._suspending):
                    raise
                self._suspended(error)
                self._run.stopping.wait(_RETRY_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.current = None
        self._stack.__exit__(kind, error, trace)


def is_bearable(error: Exception, run: RoleRun, kinds: tuple[type[Exception], ...]) -> bool:
    """Whether the role of *run* is to go on after *error*: one of *kinds*, or one that passes by itself, after which a
    role that has an owner starts again where it is assigned.
    """
    return not run.is_owned if may_pass(error) else isinstance(error, kinds)


def errors_once(text: str, clock: Clock) -> Callable[[Exception], None]:
    """A function that logs *text* with an error, at most once an hour as long as it has the same words."""
    last, logged_at = "", 0.0

    def report(error: Exception) -> None:
        nonlocal last, logged_at
        now = clock.monotonic()
        if str(error) != last or now - logged_at > _REPEAT_SECONDS:
            _log.error("%s: %s", text, error)
            last, logged_at = str(error), now

    return report
