"""A running role of a process: its open resources and its threads."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager

from millstream.cli.logging_setup import describe_error
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import MillstreamError
from millstream.core.sql_failures import SqlFailure, describe_sql_failure
from millstream.node.members.role_scheduler import may_pass

_RETRY_SECONDS = 60.0
"""How long a role is suspended before it is tried again."""

_STEADY_SECONDS = 60.0
"""For how long a role that is tried again works before it is not shown as suspended: a try may take as long as a lock
or a server makes it wait, and fail."""

_REPEAT_SECONDS = 3600.0
"""How long an error is not logged again."""

_log = logging.getLogger(__name__)


class RoleRun:
    """The role *name*. What its threads raise is given to *failed*, unless it may pass.

    After an error that may pass the role is suspended: it goes on after a minute, and *suspended* has the error under
    its name until it works again. With *fence* the role has one owner among several processes: its threads write to the
    node's database within it, and where it was lost, or an error may pass, the role ends (``is_lost``) and may begin
    anew.
    """

    def __init__(
        self,
        name: str,
        failed: Callable[[Exception], object],
        fence: Callable[[], AbstractContextManager[object]] | None = None,
        *,
        suspended: MutableMapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name, self.is_lost = name, False
        self._suspended = {} if suspended is None else suspended
        self._report = errors_once(f"{name} is suspended, and tried again every minute", clock or SystemClock())
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
            attempt: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
            while True:
                try:
                    with attempt(), self.fence():
                        run()
                    return
                except Exception as error:
                    if not self.bears(error):
                        self._handle(thread, error)
                        return
                    self.suspend(error)
                if self.stopping.is_set():
                    return
                attempt = self.resumed_later

        self._threads.append(threading.Thread(target=guarded, name=thread))

    def start(self) -> RoleRun:
        """Start its threads."""
        for thread in self._threads:
            thread.start()
        return self

    def bears(self, error: Exception, kinds: tuple[type[Exception], ...] = ()) -> bool:
        """Whether the role goes on after *error*: one of *kinds*, or one that may pass, after which a role that has an
        owner starts again where it is assigned."""
        return not self.is_owned if may_pass(error) else isinstance(error, kinds)

    def suspend(self, error: Exception, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Show that the role is suspended because of *error*, call *meanwhile*, and wait until it is to be tried again,
        or is stopped."""
        self._suspended[self.name] = in_words(error)
        self._report(error)
        meanwhile()
        self.stopping.wait(_RETRY_SECONDS)

    def resume(self) -> None:
        """The role is not suspended any more."""
        self._suspended.pop(self.name, None)

    @contextlib.contextmanager
    def resumed_later(self) -> Iterator[None]:
        """:meth:`resume` once the block has run for :data:`_STEADY_SECONDS`, or at its end without an error."""
        timer = threading.Timer(_STEADY_SECONDS, self.resume)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no thread can be started: the role works nevertheless
            self.resume()
        try:
            yield
            self.resume()
        finally:
            timer.cancel()
            if timer.ident is not None:
                timer.join()

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
        except Exception as error:
            if not (self.is_owned and (isinstance(error, MillstreamError) or may_pass(error))):
                raise
            _log.warning("%s has ended with an error: %s", self.name, error)
        finally:  # another process may have the role now, and its state
            self.resume()

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


def errors_once(text: str, clock: Clock) -> Callable[[Exception], None]:
    """A function that logs *text* with an error, at most once an hour as long as it has the same words."""
    last, logged_at = "", 0.0

    def report(error: Exception) -> None:
        nonlocal last, logged_at
        now, words = clock.monotonic(), in_words(error)
        if words != last or now - logged_at > _REPEAT_SECONDS:
            _log.error("%s: %s", text, words)
            last, logged_at = words, now

    return report


def in_words(error: Exception) -> str:
    """*error* in one line, of a database without the statement and its values."""
    return f"the database {describe_sql_failure(error)}" if isinstance(error, SqlFailure) else describe_error(error)
