"""Waiting for a topic to have something new, on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict


class TopicNotifier:
    """Tells those who wait for a topic that it may have something for them."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = defaultdict(int)
        self._waiting: dict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def version(self, topic: str) -> int:
        """A number that changes with every :meth:`notify`; read it before looking for messages."""
        return self._versions.get(topic, 0)  # a caller may invent topics: they leave nothing here

    def notify(self, topic: str) -> None:
        """Wake all who wait for *topic*."""
        self._versions[topic] += 1
        for future in self._waiting.pop(topic, ()):
            if not future.done():
                future.set_result(None)

    def notify_all(self) -> None:
        """Wake all who wait."""
        for topic in list(self._waiting):
            self.notify(topic)

    async def wait(self, topic: str, version: int, seconds: float) -> None:
        """Return when *topic* was woken after *version* was read, or after *seconds*."""
        if self.version(topic) != version:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[topic].add(future)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            self._waiting[topic].discard(future)
