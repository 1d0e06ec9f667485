"""A process that is watched line by line, and killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

WAIT_SECONDS = 120.0
"""For how long a child may say nothing before the torture gives up on it."""


class WatchedProcess:
    """``python -m`` *module* with *arguments*, in *environment* if one is given. What it printed is in ``lines``.

    Use it in a ``with`` block: it is certainly gone afterwards.
    """

    def __init__(self, module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self._errors: list[str] = []
        self._changed = threading.Condition()
        self._over = False
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._collect)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def errors(self) -> str:
        """The end of what it wrote to standard error."""
        return "".join(self._errors[-20:])

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, by itself or killed."""
        return self._process.poll() is not None

    def wait_for(self, count: int, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it has printed *count* lines; False where it ended before, or that takes longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self.lines) >= count, seconds)
            return len(self.lines) >= count

    def send(self, number: int) -> None:
        """Send it the signal *number*."""
        self._process.send_signal(number)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Wait for its end; the exit code."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kill it with signal 9; ``lines`` then has all that it printed. Killing again does nothing."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                with self._changed:
                    self.lines.append(line[:-1])
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _collect(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)
            del self._errors[:-20]
