"""Threads that wait until ids are durable: each sleeps on its own lock, and is woken once. One condition for all would
wake every thread at every commit, and they would compete for the interpreter.
"""

from __future__ import annotations

import threading

WOKEN_AT_ONCE = 16
"""Number of threads that are woken together; each wakes one more, so that few run at the same time."""


class Waiter:
    """One thread that waits for *last_id*. When it ``leads``, it is to commit next."""

    __slots__ = ("_ticket", "last_id", "leads", "successor", "thread")

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        self.thread = threading.get_ident()
        self.leads = False
        self.successor: Waiter | None = None
        self._ticket = threading.Lock()
        self._ticket.acquire()

    def wait(self) -> None:
        """Sleep until :meth:`wake`, then wake the successor."""
        self._ticket.acquire()
        if self.successor is not None:
            self.successor.wake()

    def wake(self) -> None:
        """Let the thread continue."""
        self._ticket.release()


class Waiters:
    """All that wait for one writer. Not thread-safe; its owner holds a lock, briefly, so nothing here takes long."""

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []
        self._last_id = 0

    def add(self, waiter: Waiter) -> None:
        """One more."""
        self._last_id = max(self._last_id, waiter.last_id)
        self._waiting.append(waiter)

    def take(self, pointer: int | None = None) -> list[Waiter]:
        """Those whose ids are durable by *pointer*, for :func:`wake`; without it, everybody."""
        if pointer is None or self._last_id <= pointer:
            due, self._waiting = self._waiting, []
            return due
        due = [waiter for waiter in self._waiting if waiter.last_id <= pointer]
        self._waiting = [waiter for waiter in self._waiting if waiter.last_id > pointer]
        return due

    def promote(self) -> Waiter | None:
        """The one that has waited longest, which is woken and commits next; None where no thread waits."""
        if not self._waiting:
            return None
        waiter = self._waiting[0]
        del self._waiting[0]  # not pop(): a signal may interrupt after a call, and the waiter would never be woken
        waiter.leads = True
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """*waiter* waits no more; False where it was taken already, and its duties are the caller's."""
        if waiter not in self._waiting:
            return False
        self._waiting.remove(waiter)
        return True


def wake(due: list[Waiter]) -> None:
    """Wake the first of *due*, who wake the others in their turn."""
    for waiter, successor in zip(due, due[WOKEN_AT_ONCE:], strict=False):
        waiter.successor = successor
    for waiter in due[:WOKEN_AT_ONCE]:
        waiter.wake()
