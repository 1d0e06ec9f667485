"""Waiting in tests for what another thread or process is about to bring about."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.core.clock import SystemClock

_LOOK_SECONDS, _LONGEST_PAUSE = 0.005, 0.25

_PAUSES_A_LOOK = 4
"""The pause between two looks takes so many times what a look took: what is waited for needs the processor more."""

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str = "what was waited for", *, seconds: float = 60) -> Found:
    """What *condition* gives once that is true. Raises :class:`TimeoutError`: *what* did not come in *seconds*."""
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    while True:
        began = clock.monotonic()
        if found := condition():
            return found
        now = clock.monotonic()
        if now > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds} seconds")
        clock.sleep(pause_after(now - began))


def pause_after(look: float) -> float:
    """The seconds to wait for the next look at a condition, where one takes *look* seconds."""
    return min(max(_LOOK_SECONDS, _PAUSES_A_LOOK * look), _LONGEST_PAUSE)


def join(thread: threading.Thread, *, seconds: float = 60) -> None:
    """Wait until *thread* has ended. Raises :class:`TimeoutError` after *seconds*."""
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"thread {thread.name} did not end within {seconds} seconds")


def until_allowed(call: Callable[[], Found], refusal: type[Exception], *, seconds: float = 60) -> Found:
    """What *call* returns once it no longer raises *refusal*. Raises :class:`TimeoutError` after *seconds*."""

    def attempt() -> tuple[Found] | None:
        with contextlib.suppress(refusal):
            return (call(),)
        return None

    found = until(attempt, f"an end of {refusal.__name__}", seconds=seconds)
    assert found is not None
    return found[0]


async def until_async(condition: Callable[[], object], *, seconds: float | None = None) -> None:
    """Return once *condition* holds, while the event loop continues.

    Raises :class:`TimeoutError` after *seconds*; without them the bound is the caller's.
    """
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(_LOOK_SECONDS)


async def until_allowed_async(
    call: Callable[[], Awaitable[Found]], refusal: type[Exception], *, seconds: float | None = None
) -> Found:
    """Like :func:`until_allowed`, while the event loop continues; without *seconds* the bound is the caller's."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except refusal:
                await asyncio.sleep(_LOOK_SECONDS)
