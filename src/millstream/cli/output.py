"""The standard streams of the process: also where one is closed, or where the reader of the output ends first."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Command = TypeVar("Command", bound=Callable[..., Any])

_STDIN, _STDOUT, _STDERR = range(3)

_ending: list[object] = []
"""Not empty while a command runs that ends with its reader."""


class ReaderEndedError(BrokenPipeError):
    """The reader of standard output has ended, and so does the command: its output is all that it does."""


class _Output(io.FileIO):
    """Standard output or error. Once its reader has ended, the rest is written to /dev/null, so that a command does
    what it has to do and ends with an exit code that tells what it found."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            has_ended = isinstance(error, BrokenPipeError | ConnectionResetError)
            if has_ended or self.fileno() == _STDOUT:  # a log on a full disk continues when there is space again
                with Path(os.devnull).open("wb") as nowhere:  # what is still in buffers fails no more, when Python ends
                    os.dup2(nowhere.fileno(), self.fileno())
            if not has_ended:
                raise
            if _ending and self.fileno() == _STDOUT:
                raise ReaderEndedError from None
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Write standard output and error to readers that may end, and open /dev/null for each standard stream that is
    closed: otherwise the next file that is opened takes its number, and gets what is printed."""
    for number in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = os.fdopen(_STDIN, closefd=False)
    if sys.stdout is sys.__stdout__:  # unless a test captures it
        sys.stdout = _text_stream(_STDOUT, cast("io.TextIOWrapper | None", sys.stdout))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text_stream(_STDERR, cast("io.TextIOWrapper | None", sys.stderr))


def _text_stream(number: int, before: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """The stream *number* with the properties of the one *before*, which is None where it was closed."""
    output = io.BufferedWriter(_Output(number, "wb", closefd=False))
    if before is None:
        return io.TextIOWrapper(output, "utf-8", "backslashreplace")
    flushes = before.line_buffering or before.write_through
    return io.TextIOWrapper(output, before.encoding, before.errors, line_buffering=flushes)


def ends_with_reader(command: Command) -> Command:
    """Let *command*, whose output is all that it does, end as soon as nobody reads that, with exit code 0."""

    @functools.wraps(command)
    def ending(*args: Any, **kwargs: Any) -> Any:
        with _ending_with_reader():
            result = command(*args, **kwargs)
            sys.stdout.flush()
            return result

    return ending  # type: ignore[return-value]


@contextlib.contextmanager
def _ending_with_reader() -> Iterator[None]:
    _ending.append(None)
    try:
        yield
    finally:
        _ending.pop()
