"""Durability for an event loop: many calls append, one thread waits for their commits and tells them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from millstream.log import IdRange, Message, Writer

Waiter = tuple[int, "asyncio.Future[None]"]


class Commits:
    """Waits for writers in a thread of its own. What is appended while a commit runs shares the next one.

    Made and used on one event loop; :meth:`close` ends the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: dict[Writer, list[Waiter]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="millstream-broker-commits", daemon=True)
        self._thread.start()

    async def append(self, writer: Writer, messages: Sequence[Message]) -> IdRange:
        """Append *messages* (at least one) and return their ids once they are durable."""
        ids = writer.append_nowait(messages)
        assert ids is not None
        await self.durable(writer, ids.last)
        return ids

    async def durable(self, writer: Writer, last_id: int) -> None:
        """Return once every message of *writer* up to *last_id* is durable; raises what the commit raised."""
        if writer.last_id >= last_id:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        with self._changed:
            self._waiting.setdefault(writer, []).append((last_id, future))
            self._changed.notify()
        await future

    def close(self) -> None:
        """End the thread once those who wait have been told."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            for writer, waiters in work.items():
                error = _commit(writer, max(last_id for last_id, _ in waiters))
                self._loop.call_soon_threadsafe(_tell, waiters, error)

    def _next(self) -> dict[Writer, list[Waiter]] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            work, self._waiting = self._waiting, {}
            return work or None


def _commit(writer: Writer, last_id: int) -> Exception | None:
    try:
        writer.durable(last_id)
    except Exception as error:
        return error
    return None


def _tell(waiters: Sequence[Waiter], error: Exception | None) -> None:
    for _, future in waiters:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
