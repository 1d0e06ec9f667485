"""The event loop of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_server(main: Coroutine[Any, Any, Result]) -> Result:
    """Run *main* like ``asyncio.run``, in the event loop of uvloop if it is installed: its turns cost less.

    For processes of our own that serve. Clients run in the event loop of their users.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # it is not available for every platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop
