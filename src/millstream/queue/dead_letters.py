"""Dead tasks as people look at them: grouped by what their causes have in common, and in pages."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from millstream.queue.protocol import DeadTask

_VARYING = re.compile(
    r"\b(?=[\w-]*\d)[0-9a-f-]{6,}\b|[0-9a-f]{16,}|(?<!\d)(?<!\b(?-i:[A-Z]))\d+|'[^']*'|\"[^\"]*\"|/\S+", re.IGNORECASE
)
"""What differs from task to task; the number of a code, such as ``D14``, does not."""

_LONGEST = 1000


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead tasks with the same cause: the common text of their causes, their number, and one of them."""

    cause: str
    count: int
    first_died_at: int
    last_died_at: int
    example: str


class DeadLetters:
    """*tasks*, by id, ready to be paged through and grouped.

    *known* are the groups of causes that were computed before (see :attr:`names`): only tasks that died since are read.
    """

    def __init__(self, tasks: Sequence[DeadTask], known: Mapping[str, str] | None = None) -> None:
        known = known or {}
        self._all = _Page(tasks)
        self.names: Mapping[str, str] = {
            text: known.get(text) or common_cause(text) for text in {task.cause for task in tasks}
        }
        groups: dict[str, list[DeadTask]] = {}
        for task in tasks:
            groups.setdefault(self.names[task.cause], []).append(task)
        self._groups = {name: _Page(found) for name, found in groups.items()}
        self.causes = sorted(map(_cause, groups, groups.values()), key=lambda one: -one.count)

    def page(self, *, limit: int, after: int = 0, cause: str | None = None) -> Sequence[DeadTask]:
        """Up to *limit* of them with ids above *after*, by id; with *cause* only those of that group."""
        page = self._all if cause is None else self._groups.get(cause)
        return page.after(after, limit) if page else []


def common_cause(cause: str) -> str:
    """*cause* without what differs from task to task: numbers, hashes, paths and names in quotation marks."""
    line = cause.strip().partition("\n")[0]
    return _VARYING.sub("…", line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…")


class _Page:
    def __init__(self, tasks: Sequence[DeadTask]) -> None:
        self._tasks, self._ids = tasks, [task.task_id for task in tasks]

    def after(self, task_id: int, limit: int) -> Sequence[DeadTask]:
        first = bisect_right(self._ids, task_id)
        return self._tasks[first : first + limit]


def _cause(name: str, tasks: Sequence[DeadTask]) -> DeadLetterGroup:
    times = [task.died_at for task in tasks]
    return DeadLetterGroup(
        cause=name, count=len(tasks), first_died_at=min(times), last_died_at=max(times), example=tasks[0].cause
    )
