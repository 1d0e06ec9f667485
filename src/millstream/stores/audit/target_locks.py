"""Which items and spaces the threads of one process are changing: one thread each, however many it holds at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

Target = tuple[str, str, str]
"""Store, space, and content id; the latter is empty for the space itself."""


class TargetLocks:
    """Exactly the targets that are held, so that threads with many of them meet only where they want the same one."""

    def __init__(self) -> None:
        self._held: set[Target] = set()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def hold(self, targets: Iterable[Target]) -> Iterator[None]:
        """Hold all *targets* for the block, once none of them is held. A thread that holds some asks for no more.

        They are taken all at once or not at all, so that no two threads ever wait for each other.
        """
        wanted = frozenset(targets)
        with self._changed:
            self._changed.wait_for(lambda: self._held.isdisjoint(wanted))
            self._held |= wanted
        try:
            yield
        finally:
            with self._changed:
                self._held -= wanted
                self._changed.notify_all()
