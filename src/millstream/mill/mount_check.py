"""A store that should hold items but lists no space is treated as unavailable: its disk is not mounted.

An empty mount point looks like a store whose items were all deleted. Without this check every item would be reported
missing and copied again onto the disk below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millstream.core.clock import Clock
from millstream.core.shown_commands import arguments
from millstream.mill.manifest import Manifest
from millstream.stores.protocol import Store, StoreUnavailableError
from millstream.stores.sources import absence_question

SECONDS = 5.0
"""How long a store that was there is believed to be there still."""


class MountCheck:
    """Knows which stores should not be empty, by *manifest*. Thread-safe."""

    def __init__(self, manifest: Manifest, clock: Clock) -> None:
        self._manifest, self._clock = manifest, clock
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
        if not spaces() and self._manifest.has_items(name):
            raise StoreUnavailableError(
                f"store {name!r} at {store.url} is empty, but the manifest lists items in it: "
                f"{absence_question(store.url)} If a new store replaced it, run `millstream store "
                f"create {arguments(name)} SPACE`"
            )
        with self._lock:
            self._seen[name] = now
