"""Messages that must go one after another: a line for every message group."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable


class MessageGroupQueues:
    """Queues of message ids, one per message group, in the order of ids. *is_free* says that no client has an id."""

    def __init__(self, is_free: Callable[[int], bool]) -> None:
        self._is_free = is_free
        self._queues: dict[str, deque[int]] = {}
        self._groups: dict[int, str] = {}
        self._heads: list[int] = []  # ids that were free heads when they were pushed; looked at again when popped

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, number: int, group: str) -> None:
        """The message *number*, larger than all before, joins the end of its line."""
        self._groups[number] = group
        queue = self._queues.get(group)
        if queue is None:
            self._queues[group] = deque([number])
            heapq.heappush(self._heads, number)
        else:
            queue.append(number)

    def release(self, number: int) -> None:
        """The message *number* has come back: if it is the first of its line, it may go."""
        group = self._groups.get(number)
        if group is not None and self._queues[group][0] == number:
            heapq.heappush(self._heads, number)

    def remove(self, first: int, last: int) -> None:
        """The messages *first* to *last* are done; those behind them may go."""
        done = range(first, last + 1)
        for number in done if last - first < len(self) else sorted(self._groups):
            if number in done and number in self._groups:
                self._remove(number)

    def _remove(self, number: int) -> None:
        group = self._groups.pop(number)
        queue = self._queues[group]
        was_head = queue[0] == number
        if was_head:
            queue.popleft()
        else:
            queue.remove(number)
        if not queue:
            del self._queues[group]
        elif was_head:
            heapq.heappush(self._heads, queue[0])

    def free(self, count: int, *, consecutive: bool) -> list[int]:
        """At most *count* ids that may go now, the smallest heads first; with *consecutive* also what follows a head.

        The same ids are given until they are lent or removed.
        """
        found: list[int] = []
        heads: set[int] = set()
        while self._heads and len(found) < count:
            head = heapq.heappop(self._heads)
            group = self._groups.get(head)
            if group is None or self._queues[group][0] != head or not self._is_free(head) or head in heads:
                continue
            heads.add(head)
            found.extend(self._run(group, count - len(found)) if consecutive else [head])
        for head in heads:
            heapq.heappush(self._heads, head)
        return found

    def _run(self, group: str, count: int) -> list[int]:
        run: list[int] = []
        for number in self._queues[group]:
            if len(run) == count or not self._is_free(number):
                break
            run.append(number)
        return run
