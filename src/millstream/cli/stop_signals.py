"""Stop requests for commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def stop_on_signals() -> Callable[[], bool]:
    """Let the first SIGTERM or Ctrl-C ask for an orderly end; the function returned says whether it came.

    A second one ends the process at once. To be called in the main thread.
    """
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return lambda: asked
