"""What a role of a node has open and works with: it is opened again, after a pause, where it could not be used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from millstream.node.members.role_scheduler import may_pass

if TYPE_CHECKING:
    from millstream.cli.role_run import RoleRun

T = TypeVar("T")


class RetriedResource(Generic[T]):
    """What *opened* returns, for the thread of *run* that works with it. It is closed at the end of the block.

    One of the errors *suspending* suspends this role alone, so that the rest of the process works on: *suspended* is
    called, and after a minute it is opened again. The same holds for errors that the role bears in any case
    (:meth:`~millstream.cli.role_run.RoleRun.bears`).
    """

    def __init__(
        self,
        run: RoleRun,
        opened: Callable[[], AbstractContextManager[T]],
        suspending: tuple[type[Exception], ...],
        suspended: Callable[[], object],
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
            attempt: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
            try:
                with self._stack.pop_all() as stack:
                    if self.current is None:
                        self.current = stack.enter_context(self._opened())
                        attempt = self._run.resumed_later
                    try:
                        with attempt():
                            work(self.current)
                    except BaseException:
                        self.current = None
                        raise
                    self._stack = stack.pop_all()  # open to other roles until this one ends
            except Exception as error:
                if not self._run.bears(error, self._suspending):
                    raise
                self._run.suspend(error, self._suspended)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.current = None
        self._stack.__exit__(kind, error, trace)
