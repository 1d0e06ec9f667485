"""A store that should hold items but lists no space is treated as unavailable: its disk is not mounted.

An empty mount point looks like a store whose items were all deleted. Without this check every item would be reported
missing and copied again onto the disk below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millstream.core.clock import Clock
from millstream.core.shown_commands import arguments
from millstream.stores.protocol import Store, StoreUnavailableError
from millstream.stores.sources import absence_question

SECONDS = 5.0
"""How long a store that was there is believed to be there still."""


class MountCheck:
    """Knows which stores should not be empty: *has_items* says so by their ids. Thread-safe."""

    def __init__(self, has_items: Callable[[str], bool], clock: Clock) -> None:
        self._has_items, self._clock = has_items, clock
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def require(
        self, name: str, store: Store, spaces: Callable[[], Sequence[str]], *, seconds: float = SECONDS
    ) -> None:
        """Raise :class:`StoreUnavailableError` where *store*, called *name*, lists no *spaces* and should have items.

        *spaces* asks the store, and is not called where that was done in the last *seconds*.
        """
        now = self._clock.monotonic()
        with self._lock:
            if now - self._seen.get(name, float("-inf")) < seconds:
                return
        if not spaces() and self._has_items(name):
            raise unmounted(name, store.url)
        with self._lock:
            self._seen[name] = now


def unmounted(name: str, url: str) -> StoreUnavailableError:
    """The error of the store *name* at *url*, which should have items and lists no space."""
    return StoreUnavailableError(
        f"store {name!r} at {url} is empty, but the manifest lists items in it: {absence_question(url)} If a new store "
        f"replaced it, run `millstream store create {arguments(name)} SPACE`"
    )
