"""A running role of a process: its open resources and its threads."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import sqlalchemy as sa

from millstream.core.errors import MillstreamError
from millstream.node.members.role_scheduler import may_pass

_log = logging.getLogger(__name__)


class RoleRun:
    """The role *name*. What its threads raise is given to *failed*.

    With *fence* the role has one owner among several processes: its threads write to the node's database within it, and
    where it was lost, or what it needs is busy or does not answer, the role ends (``is_lost``) and may begin anew.
    """

    def __init__(
        self,
        name: str,
        failed: Callable[[Exception], object],
        fence: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        self.name, self.is_lost = name, False
        self.fence: Callable[[], AbstractContextManager[object]] = fence or contextlib.nullcontext
        self.stopping = threading.Event()
        self._failed = failed
        self.is_owned = fence is not None
        self._threads: list[threading.Thread] = []
        self._stack = contextlib.ExitStack()

    def open(self, opener: Callable[[RoleRun], AbstractContextManager[object]]) -> RoleRun:
        """Open the resources of the role until it ends. Its threads are not started."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(opener(self))
            self._stack = stack.pop_all()
        return self

    def add(self, thread: str, run: Callable[[], None]) -> None:
        """A thread of the role, of that name."""

        def guarded() -> None:
            try:
                with self.fence():
                    run()
            except Exception as error:
                self._handle(thread, error)

        self._threads.append(threading.Thread(target=guarded, name=thread))

    def start(self) -> RoleRun:
        """Start its threads."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Complete running work and begin nothing more. Does not wait."""
        self.stopping.set()

    def end(self) -> None:
        """:meth:`stop`, wait for the threads, and close the resources; a failed close is not retried."""
        self.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        try:
            with self.fence():
                self._stack.close()
        except (MillstreamError, sa.exc.OperationalError) as error:
            if not self.is_owned:
                raise
            _log.warning("%s has ended with an error: %s", self.name, error)

    def _handle(self, thread: str, error: Exception) -> None:
        if self.is_owned and may_pass(error):
            _log.warning("%s has ended, and starts again where it is assigned: %s", thread, error)
            self.is_lost = True
            return
        if isinstance(error, MillstreamError):
            _log.error("%s has ended: %s", thread, error)
        else:
            _log.exception("%s has failed", thread)
        self._failed(error)
