"""The parent's side: children that are started when there is enough to do, asked one at a time, and replaced."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from typing import BinaryIO, cast

from millstream.core.clock import SystemClock
from millstream.core.closing import ClosesOnExit
from millstream.stores.processes.frames import READY, read_frame, write_frame
from millstream.stores.protocol import StoreError, StoreUnavailableError

MAX_PROCESSES = 4
"""Maximum number of processes by default: more of them would wait for the disk or for the calling process."""

WORTH = 4000
"""So many items are asked for before children are started: a command of a few is over before they would be up."""

MAX_LOSSES = 10
"""After so many children that were killed within :data:`REMEMBERED` no more are started: something on this machine does
not want them."""

REMEMBERED = 3600.0
"""Seconds after which a lost child is forgotten."""

CHILD = "millstream.stores.processes.child"
"""The program of a child."""

_PIPE_BYTES = 1 << 20
_PATIENCE = 10.0
"""Seconds that a child has to end in when it is told to."""

_log = logging.getLogger(__name__)


def default_process_count() -> int:
    """Processes by default: none where there is one processor only, and at most :data:`MAX_PROCESSES`."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, MAX_PROCESSES) if processors > 1 else 0


class BulkProcesses(ClosesOnExit):
    """At most *count* children that do many small items of local stores at once; none with 0. Thread-safe.

    They are started once *worth* items have been asked for; until the first of them is up, and where none can be
    started, there is none to ask and everybody does his work himself. To be closed.
    """

    def __init__(self, count: int | None = None, *, worth: int = WORTH) -> None:
        self._count = default_process_count() if count is None else count
        self._worth = worth
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._idle: list[BulkChild] = []
        self._alive = self._asked = 0
        self._losses: list[float] = []  # when they were, by the monotonic clock
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._owner = os.getpid()

    @property
    def pids(self) -> list[int]:
        """The numbers of the idle children."""
        with self._changed:
            return [child.pid for child in self._idle]

    def ask(self, request: bytes, items: int) -> bytes | None:
        """The reply to *request*, which is about so many *items*; None where there is no child to ask.

        Raises :class:`StoreUnavailableError` where the child ended over it: it may have done any part of it.
        """
        child = self._take(items)
        if child is None:
            return None
        try:
            reply = child.ask(request)
        except BaseException as error:
            child.kill()  # which may take time: others go on meanwhile
            with self._changed:
                self._lose(child)
            if isinstance(error, ChildEndedError):
                raise StoreUnavailableError(
                    f"the child process that was processing {items} items of a local store {child.ending()}: try again"
                ) from error
            raise
        self._give_back(child)
        return reply

    def close(self) -> None:
        """Let the children end, once what they were asked for is done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._keeper is not None:
            self._keeper.join()

    def _take(self, items: int) -> BulkChild | None:
        if not self._count or os.getpid() != self._owner:
            return None
        with self._changed:
            self._asked += items
            if self._keeper is None and self._asked >= self._worth and not self._closed:
                self._keeper = threading.Thread(target=self._keep, name="bulk-processes", daemon=True)
                self._keeper.start()
            while not self._closed and self._alive:
                if not self._idle:
                    self._changed.wait()
                elif not (child := self._idle.pop()).has_ended:
                    return child
                else:
                    self._lose(child)
            return None

    def _give_back(self, child: BulkChild) -> None:
        with self._changed:
            self._idle.append(child)
            self._changed.notify_all()

    def _lose(self, child: BulkChild) -> None:
        """Drop a child that has ended, is not idle any more, and that no call uses; ``_changed`` is held."""
        child.kill()
        self._alive -= 1
        self._losses.append(self._clock.monotonic())
        self._changed.notify_all()
        more = f"; no further child process is started for {REMEMBERED / 60:.0f} min" if not self._may_start() else ""
        _log.warning("a child process for small files %s; another process does its work%s", child.ending(), more)

    def _keep(self) -> None:
        """Start children, and others for those that are lost; end them.

        They die with the thread that started them, so it is one that outlives them.
        """
        while self._is_wanted():
            try:
                child = BulkChild()
            except Exception as error:  # no caller may wait for this thread in vain
                _log.warning("cannot start further child processes for small files: %s", error)
                with self._changed:
                    self._losses = [self._clock.monotonic()] * MAX_LOSSES
                continue
            with self._changed:
                self._alive += 1
                self._idle.append(child)
                self._changed.notify_all()
        for child in self._idle:
            child.end()
        self._idle.clear()

    def _is_wanted(self) -> bool:
        """Wait until there is one to start (True), or until all are back and no more will be asked (False)."""
        with self._changed:
            while True:
                if self._closed and self._alive == len(self._idle):
                    self._alive = 0
                    return False
                if not self._closed and self._alive < self._count and self._may_start():
                    return True
                self._changed.wait(REMEMBERED if self._losses else None)

    def _may_start(self) -> bool:
        now = self._clock.monotonic()
        self._losses = [lost for lost in self._losses if now - lost < REMEMBERED]
        return len(self._losses) < MAX_LOSSES


class ChildEndedError(Exception):
    """The child is gone."""


class BulkChild:
    """A process that does bulk work of local stores, one request at a time. Raises ``OSError`` or :class:`StoreError`
    where it cannot be started."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", CHILD, str(os.getpid())]
        # In a session of its own: a Ctrl-C at the terminal is for the parent, who tells it when to end.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._requests, self._replies = (
            cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        )  # fmt: skip
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError, AttributeError):  # not on this system, or not so many: small ones do
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        if read_frame(self._replies) != READY:
            self.kill()
            raise StoreError(
                f"the child process for small files (process {self.pid}) {self.ending()} while it started: its "
                "standard error, which is that of this process, shows the cause"
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it ended without a request."""
        return self._process.poll() is not None

    def ask(self, request: bytes) -> bytes:
        """The reply to *request*. Raises :class:`ChildEndedError`."""
        try:
            write_frame(self._requests, request)
            reply = read_frame(self._replies)
        except OSError as error:
            raise ChildEndedError from error
        if reply is None:
            raise ChildEndedError
        return reply

    def ending(self) -> str:
        """The exit status, in words."""
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Let it end, now that it has nothing to do."""
        self._requests.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.kill()

    def kill(self) -> None:
        """It is certainly gone afterwards."""
        self._process.kill()
        with contextlib.suppress(OSError):  # what was not sent is of no use any more
            self._requests.close()
        self._replies.close()
        self._process.wait()
