"""Copies made by the process that plans them: groups of small items, with no queue between plan and work.

What a group does together is written down together: the manifest, the audit log and the end of the changes that were
intended. Nothing else remembers the work: where the process ends in the middle, the next plan finds what is left, and
what was begun is settled as every open change of an audited store is. What cannot be done in a group is left to the
queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from millstream.core.clock import Clock
from millstream.mill.audit.audit_processor import AuditProcessor
from millstream.mill.duplication.differences import ComparedItem, ItemDifference
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.manifest import ManifestEvent
from millstream.mill.merge_join import groups, map_ahead
from millstream.mill.policies.policy import Pair
from millstream.mill.task_processor import TaskResult
from millstream.stores.audit import AuditEvent, AuditOutbox
from millstream.stores.protocol import ItemInfo

GROUP = 1000
"""Items of a group: with more of them syncs and transactions cost hardly less an item."""

THREADS = 4
"""Groups at once: while one is being written, others are read, and others recorded."""

KEPT_NAMES = 200_000
"""Ids that a plan keeps in memory: of more items to be copied, both ends are listed a second time."""

KEPT_INFOS = 50_000
"""Items of which a plan keeps what the source says of them (some 50 MB); the others are examined again."""

FRESH = 60.0
"""Seconds after which what the source said of an item is asked again."""

_log = logging.getLogger(__name__)


class PlannedCopies:
    """What a plan found to be copied, as far as it is little enough to be kept.

    ``names`` are the ids, None where they are so many that a second look at both ends is better. *clock* tells how old
    is what the source said of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began = clock, clock.monotonic()
        self.names: list[str] | None = []
        self._infos: dict[str, ItemInfo] = {}

    def add(self, found: ComparedItem) -> None:
        """An item to be copied, or compared again."""
        if found.kind != ItemDifference.COPY:
            self._infos.pop(found.name, None)
        self.add_new([found.name])

    def add_new(self, names: Sequence[str]) -> None:
        """Items that are missing at the destination."""
        if self.names is not None:
            self.names += names
            if len(self.names) > KEPT_NAMES:
                self.names = None

    def add_info(self, info: ItemInfo) -> None:
        """The metadata of an item at the source, to be set before :meth:`add`."""
        if len(self._infos) < KEPT_INFOS:
            self._infos[info.content_id] = info

    def take_infos(self, names: Sequence[str]) -> Sequence[ItemInfo | None]:
        """The source's recent metadata of those of *names* that are missing at the destination; None for others."""
        if self._clock.monotonic() - self._began > FRESH:
            self._infos.clear()
        return [self._infos.pop(name, None) for name in names]


class DirectDuplicator:
    """Copies items with *processor*, and writes down with *settle* what came of it and what changes of *outbox* mean to
    *audit*.

    ``done`` counts the items that needed no queue. *outbox* is that of the audited stores. One plan at a time.
    """

    def __init__(
        self,
        processor: DuplicationProcessor,
        settle: Callable[[Sequence[TaskResult]], object],
        audit: AuditProcessor,
        outbox: AuditOutbox,
    ) -> None:
        self._processor, self._settle, self._audit, self._outbox = processor, settle, audit, outbox
        self._counting = threading.Lock()
        self.done = 0

    def copy(self, pair: Pair, space: str, names: Iterable[str], planned: PlannedCopies) -> Iterator[Sequence[str]]:
        """Bring the copies of *names* up to date; gives those that are left to be done alone, some at a time."""
        parts = (dict(zip(some, planned.take_infos(some), strict=True)) for some in groups(names, GROUP))
        yield from map_ahead(lambda infos: self._copy(pair, space, infos), parts, THREADS)

    def _copy(self, pair: Pair, space: str, infos: Mapping[str, ItemInfo | None]) -> Sequence[str]:
        results: Mapping[str, TaskResult] = {}
        with self._outbox.collecting() as events:
            try:
                results = self._processor.copy_group(pair, space, infos)
            except Exception as error:  # whatever it is, it is found again with each of them, and is said of it
                _log.info("%d items are copied one by one, not together: %s", len(infos), error)
            copied = TaskResult("copied by the plan", events=tuple(_unaudited(results.values(), events)))
            self._settle([copied, self._audit.result_of_all(events)])
        with self._counting:
            self.done += len(results)
        return [name for name in infos if name not in results]


def _unaudited(results: Iterable[TaskResult], events: Iterable[AuditEvent]) -> Iterator[ManifestEvent]:
    """The changes of the manifest by *results* that *events* do not contain."""
    audited = {(event.store, event.space, event.content_id, event.sha256) for event in events}
    for result in results:
        for one in result.events:
            if (one.store, one.space, one.content_id, one.sha256) not in audited:
                yield one
