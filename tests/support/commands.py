"""The command line of Millstream, run in this process: for tests that need the output and the exit code of a command.

A process takes half a second of processor time to start; a call of :func:`run_command` takes a few milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from click.testing import CliRunner

from millstream.cli.main import main

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CommandResult(NamedTuple):
    """The exit code of a command, and its output and errors as text in UTF-8.

    Bytes that are not UTF-8 are kept as surrogates (``surrogateescape``), so that :attr:`out_bytes` is exact.
    """

    code: int
    out: str
    err: str

    @property
    def out_bytes(self) -> bytes:
        """The standard output, byte for byte."""
        return self.out.encode("utf-8", "surrogateescape")

    @property
    def err_bytes(self) -> bytes:
        """The standard error, byte for byte."""
        return self.err.encode("utf-8", "surrogateescape")


def run_command(*argv: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> CommandResult:
    """Run ``millstream`` with the arguments *argv* in this process and return its answer.

    The command reads *stdin* and sees the variables of *environment* in addition to those of this process. Exit codes,
    error messages and log lines are the same as those of the program. Afterwards the standard streams, environment
    variables, signal handlers, log handlers and the hook for failed threads are as before.

    Two things differ from the program: help is wrapped at 80 columns, and prompts read from *stdin*.

    Use a process for commands that are stopped by a signal, for pipes and terminals, and for what child processes print
    themselves: only what is written to ``sys.stdout`` and ``sys.stderr`` is captured. Use one for commands that export
    traces, too: OpenTelemetry accepts one provider in a process. Run one command at a time, in the main thread.
    """
    with tempfile.TemporaryFile() as given, _unchanged_process():
        given.write(stdin)
        given.seek(0)
        with CliRunner().isolation(given, environment) as (out, err, *_):  # a real file has a descriptor to read from
            sys.argv = ["millstream", *argv]
            code = _exit_code()
            sys.stdout.flush()
            sys.stderr.flush()
        return CommandResult(code, _text(out.getvalue()), _text(err.getvalue()))


def _exit_code() -> int:
    """The exit code with which the program would end; an uncaught exception is printed, as the interpreter does."""
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def _unchanged_process() -> Iterator[None]:
    """Undo at the end of the block what a command changes in its process and leaves to the end of the process."""
    arguments, thread_hook, root = sys.argv, threading.excepthook, logging.getLogger()
    log_handlers, signal_handlers = list(root.handlers), {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        sys.argv, threading.excepthook, root.handlers[:] = arguments, thread_hook, log_handlers
        for number, handler in signal_handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _text(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape")
