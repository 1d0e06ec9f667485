"""The looping producer of the storage statistics (reference mill §1.5, §1.10): a count of every space, day by day."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from millstream.core.clock import Clock
from millstream.mill.configured_stores import is_system
from millstream.mill.manifest import Manifest
from millstream.mill.producers.producer_loop import Chunk, LoopFailure
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.producers.state import AnyMorsel
from millstream.mill.reports.statistics import SpaceStatisticsTable
from millstream.mill.tasks import StorageStatistics, encode_task
from millstream.queue.protocol import WorkQueue

GROUP = 1000
"""Spaces that are put on the queue in one turn."""


class StatisticsMorsel(AnyMorsel, frozen=True, kw_only=True):
    """The spaces of one store; those up to ``marker`` are on the queue."""

    store: str
    marker: str = ""

    def __str__(self) -> str:
        return self.store


class StatisticsProducer:
    """Puts a count of every space that *spaces* takes on *queue*.

    Counted are the spaces that the manifest knows, and those that had items when they were last counted: one that was
    emptied since has to be counted once more. *account* is the name by which patterns of *spaces* know this
    installation.
    """

    def __init__(
        self,
        manifest: Manifest,
        statistics: SpaceStatisticsTable,
        queue: WorkQueue,
        clock: Clock,
        *,
        spaces: SpaceFilter = SpaceFilter(),  # noqa: B008  (frozen)
        account: str = "local",
    ) -> None:
        self._manifest, self._statistics, self._queue, self._clock = manifest, statistics, queue, clock
        self._spaces, self._account = spaces, account
        self.unlisted: Sequence[LoopFailure] = ()

    def morsels(self) -> Sequence[StatisticsMorsel]:
        """Every store that has spaces to count."""
        return [StatisticsMorsel(store=store) for store, _ in groupby(self._places(), key=lambda place: place[0])]

    def next_chunk(self, morsel: StatisticsMorsel, started_at: int) -> Chunk[StatisticsMorsel]:  # noqa: ARG002
        """The next spaces."""
        left = [space for store, space in self._places() if store == morsel.store and space > morsel.marker]
        spaces = left[:GROUP]
        if spaces:
            self._queue.put([encode_task(StorageStatistics(morsel.store, space)) for space in spaces])
        more = len(left) > GROUP
        return Chunk(StatisticsMorsel(store=morsel.store, marker=spaces[-1]) if more else None, len(spaces))

    def give_up(self, morsel: StatisticsMorsel, started_at: int, error: str) -> None:
        """Nothing is owed: the next loop counts again."""

    def _places(self) -> list[tuple[str, str]]:
        known = set(self._manifest.spaces())
        sizes = self._statistics.latest(until=self._clock.now())
        known |= {(size.store, size.space) for size in sizes if size.items}
        return [
            (store, space)
            for store, space in sorted(known)
            if not is_system(space) and self._spaces.takes(self._account, store, space)
        ]
