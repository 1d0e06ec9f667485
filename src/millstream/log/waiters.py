"""Threads that wait until ids are durable: each sleeps on a lock of its own, and is woken once.

One condition for all would wake everybody at every commit, and all of them at once would fight for the interpreter.
"""

from __future__ import annotations

import threading

WOKEN_AT_ONCE = 16
"""So many threads are woken together; each wakes one more, so that there are never many on their way."""


class Waiter:
    """One thread that waits for *last_id*. When it ``leads``, it is to commit next."""

    __slots__ = ("_ticket", "last_id", "leads", "successor")

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
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
        """Let the thread go on."""
        self._ticket.release()


class Waiters:
    """All that wait for one writer. Not thread-safe; its owner holds a lock."""

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []

    def add(self, last_id: int) -> Waiter:
        """One more, which waits for *last_id*."""
        waiter = Waiter(last_id)
        self._waiting.append(waiter)
        return waiter

    def wake(self, pointer: int | None = None) -> None:
        """Wake those whose ids are durable by *pointer*; without it, everybody."""
        if pointer is None:
            due, self._waiting = self._waiting, []
        else:
            due = [waiter for waiter in self._waiting if waiter.last_id <= pointer]
            self._waiting = [waiter for waiter in self._waiting if waiter.last_id > pointer]
        for waiter, successor in zip(due, due[WOKEN_AT_ONCE:], strict=False):
            waiter.successor = successor
        for waiter in due[:WOKEN_AT_ONCE]:
            waiter.wake()

    def promote(self) -> bool:
        """Wake the one that has waited longest, to commit next. False where nobody waits."""
        if not self._waiting:
            return False
        waiter = self._waiting.pop(0)
        waiter.leads = True
        waiter.wake()
        return True

    def leave(self, waiter: Waiter) -> bool:
        """*waiter* waits no more; False where it was woken already, and its duties are the caller's."""
        if waiter not in self._waiting:
            return False
        self._waiting.remove(waiter)
        return True
