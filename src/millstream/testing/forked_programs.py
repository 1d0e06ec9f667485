"""Programs that are forked from a process in which Millstream is imported already, for tests that start many.

A Python process of Millstream takes half a second of processor time to start; a forked one takes a few milliseconds. It
is a process of its own all the same: its number, locks and leases are its own, and ``kill -9`` ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

_IMPORTED = [
    "__main__",  # or each forked process would import what the command's own program imports
    "millstream.testing.forked_programs",
    "millstream.testing.torture.writer",
    "millstream.testing.torture.reader",
    "millstream.log.backends.sqlite.backend",
    "millstream.log.backends.segments.backend",
    "millstream.log.backends.nerve.backend",
    "millstream.log.backends.mysql.backend",
    "pymysql",
    "psycopg",
]
"""What the process that forks has imported; what is not installed is left out."""

_context = get_context("forkserver")
_lock = threading.Lock()


def import_before(modules: Sequence[str]) -> None:
    """Let the process that forks import *modules* as well; without effect once it runs."""
    _IMPORTED.extend(modules)
    _context.set_forkserver_preload(_IMPORTED)


import_before([])


class ForkedProgram:
    """*function* (``module:name``), which returns an exit code, in a process of its own, with ``sys.argv`` *arguments*.

    *streams* are the descriptors of its standard input, output and errors; they are copied, and stay open here. It gets
    *environment* and *folder*, or those of this process. It is used like :class:`subprocess.Popen`; it ends with the
    process that has started it.
    """

    def __init__(
        self,
        function: str,
        arguments: Sequence[str],
        streams: Sequence[int],
        *,
        environment: Mapping[str, str] | None = None,
        folder: str = "",
    ) -> None:
        copies = [Connection(os.dup(stream)) for stream in streams]
        variables = dict(os.environ if environment is None else environment)
        work = (function, [*arguments], copies, variables, folder or str(Path.cwd()))
        self._process = _context.Process(target=_run, args=work, daemon=True)
        try:
            with _lock:
                self._process.start()
        finally:
            for copy in copies:
                copy.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel
        """What :func:`multiprocessing.connection.wait` gives once it has ended."""

    def poll(self) -> int | None:
        """The exit code, that of a signal below 0; None while it runs."""
        with _lock:  # its end is read only once
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code. Raises :class:`TimeoutError` after *timeout* seconds."""
        if not wait([self.sentinel], timeout):
            raise TimeoutError(f"process {self.pid} did not end within {timeout} seconds")
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it the signal *number*, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with signal 9."""
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


def _run(
    function: str, arguments: list[str], streams: list[Connection], environment: dict[str, str], folder: str
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):  # programs compare them, to see whether somebody has replaced them
        setattr(sys, f"__{name}__", getattr(sys, name))
    current_process().daemon = False  # it may start processes as well
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    module, _, name = function.partition(":")
    try:
        sys.exit(getattr(importlib.import_module(module), name)())
    except KeyboardInterrupt:  # ends as the interpreter does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        atexit._run_exitfuncs()
