"""A process that is watched line by line, and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.testing.forked_programs import ForkedProgram
from millstream.testing.waiting import until

WAIT_SECONDS = 120.0
"""For how long a child may say nothing before the torture gives up on it."""


class WatchedProcess:
    """The function ``run`` of *module* with *arguments*, in a process of its own. What it printed is in ``lines``.

    With an *environment* it is ``python -m`` *module*, started anew; without one it is forked, which takes less time.
    Use it in a ``with`` block: it is certainly gone afterwards.
    """

    def __init__(self, module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        words = [module, *map(str, arguments)]
        (out, to_out), (errors, to_errors) = os.pipe(), os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            streams = (nothing.fileno(), to_out, to_errors)
            self._process: ForkedProgram | subprocess.Popen[bytes]
            if environment is None:
                self._process = ForkedProgram(f"{module}:run", words, streams)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", *words], stdin=nothing, stdout=to_out, stderr=to_errors, env=environment
                )
        os.close(to_out)
        os.close(to_errors)
        self.lines: list[str] = []
        self._errors: list[str] = []
        self._changed = threading.Condition()
        self._over = False
        self._threads = [
            threading.Thread(target=work, args=(pipe,), daemon=True)
            for work, pipe in ((self._listen, out), (self._collect, errors))
        ]
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

    def stop(self) -> None:
        """Stop it (SIGSTOP), and return once all its threads stand still."""
        self.send(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        until(lambda: all(_stands_still(thread) for thread in threads.iterdir()), "the stop of a process")

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _listen(self, pipe: int) -> None:
        with open(pipe, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    with self._changed:
                        self.lines.append(line[:-1])
                        self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _collect(self, pipe: int) -> None:
        with open(pipe, encoding="utf-8") as lines:
            for line in lines:
                self._errors.append(line)
                del self._errors[:-20]


def _stands_still(thread: Path) -> bool:
    return (thread / "stat").read_bytes().rpartition(b") ")[2].startswith(b"T")
