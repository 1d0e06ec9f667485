"""Stop requests for commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

import click


def stop_on_signals(stop: Callable[[], object] = bool) -> Callable[[], bool]:
    """Let the first SIGTERM or Ctrl-C ask for an orderly end; the function returned says whether it came.

    *stop* is called when it comes. A second one ends the process at once. To be called in the main thread.
    """
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        stop()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return lambda: asked


def end_if_stopped(stopped: Callable[[], bool]) -> None:
    """End a command that has an end of its own as one that was interrupted, if it was *stopped* before.

    To be called in the end, when what was done is stored and printed. Raises :class:`click.Abort`.
    """
    if stopped():
        raise click.Abort
