"""A backend whose older blocks may lie in sealed objects: what stands on it does not know where a block comes from."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.log.backend import (
    Backend,
    BlockStatistics,
    CachesBlocks,
    Commit,
    Head,
    ListsEnds,
    LooksCheaply,
    StoredBlock,
    VersionedValue,
    add_statistics,
)
from millstream.log.block_location import BlockLocation, LocatesBlocks
from millstream.log.ids import MAX_ID, BlockRange, IndexEntry
from millstream.log.tiering.objects import OpenObjects, TierObjects
from millstream.log.tiering.places import ObjectPlaces
from millstream.log.watermarks import WATERMARKS, decode_watermarks

if TYPE_CHECKING:
    from millstream.log.tiering.reading import TierReader

Found = TypeVar("Found")


class TieredBackend:
    """*backend*, with the blocks below the hot mark read from the objects that *open_objects* opens.

    Nothing is asked of an object store until an id is read that *backend* has no block of.
    """

    def __init__(self, backend: Backend, open_objects: OpenObjects) -> None:
        self.hot = backend
        self._open_objects = open_objects
        self._lock = threading.Lock()
        self._tiers: dict[str, TierReader] = {}

    @property
    def url(self) -> str:
        return self.hot.url

    @property
    def durability(self) -> str:
        return self.hot.durability

    @property
    def one_host(self) -> bool:
        return self.hot.one_host

    def logs(self) -> Sequence[str]:
        return self.hot.logs()

    def kinds(self) -> Mapping[str, str]:
        return self.hot.kinds()

    def last_ids(self) -> Mapping[str, int]:
        """The last durable ids of logs, by name: of all logs where the backend has them in one table, else of none."""
        return self.hot.last_ids() if isinstance(self.hot, ListsEnds) else {}

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        self.hot.create(log, first_id=first_id, kind=kind)

    def upgrade(self) -> None:
        self.hot.upgrade()

    def rename(self, log: str, new: str, *, epoch: int) -> bool:
        return self.hot.rename(log, new, epoch=epoch)

    def head(self, log: str) -> Head:
        return self.hot.head(log)

    def extent(self, log: str) -> Head:
        """As :meth:`head`; who writes the log may be left out."""
        return self.hot.extent(log) if isinstance(self.hot, LooksCheaply) else self.hot.head(log)

    def is_at_end(self, log: str, last_id: int) -> bool:
        """Whether a look at the log need not be: *last_id* seems to be the last one, by a cheaper look."""
        return isinstance(self.hot, LooksCheaply) and self.hot.is_at_end(log, last_id)

    def lease_time(self) -> int:
        return self.hot.lease_time()

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        return self.hot.take_lease(log, epoch=epoch, holder=holder, until=until)

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        return self.hot.renew_lease(log, epoch=epoch, until=until)

    def release_lease(self, log: str, *, epoch: int) -> None:
        self.hot.release_lease(log, epoch=epoch)

    def commit(self, log: str, commit: Commit) -> None:
        self.hot.commit(log, commit)

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        """The blocks, from wherever they are.

        A block may move while it is looked for: it is in an object before it leaves the store, so what is in neither
        of them when both were examined is missing.
        """
        known = self._tiers.get(log)
        if known is not None and first_id <= known.last_id:
            sealed = known.read(first_id, last_id, max_bytes=max_bytes)
            if sealed and sealed[0].first_id <= first_id:
                return sealed
        found = self.hot.read(log, first_id, last_id, max_bytes=max_bytes)
        if found and found[0].first_id <= first_id:
            return _up_to_hole(found)
        tier = self.tier(log, since=first_id)
        return (tier.read(first_id, last_id, max_bytes=max_bytes) if tier is not None else []) or found

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        def ranges(tier: TierReader | None, end: int) -> Sequence[BlockRange]:
            sealed = tier.ranges(first_id, min(last_id, end)) if tier is not None and first_id <= end else []
            return [*sealed, *self.hot.ranges(log, max(first_id, end + 1), last_id)]

        return self._consistent(log, first_id, last_id, ranges)

    def locate(self, log: str, first_id: int, last_id: int) -> Sequence[BlockLocation]:
        """The location of the blocks in the store itself; none if it is not a bucket."""
        hot = self.hot
        if not isinstance(hot, LocatesBlocks):
            return []

        def locate(tier: TierReader | None, end: int) -> Sequence[BlockLocation]:
            sealed = tier.locate(first_id, min(last_id, end)) if tier is not None and first_id <= end else []
            return [*sealed, *hot.locate(log, max(first_id, end + 1), last_id)]

        return self._consistent(log, first_id, last_id, locate)

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        def index(tier: TierReader | None, end: int) -> Sequence[IndexEntry]:
            sealed = tier.index(first_id, min(last_id, end)) if tier is not None and first_id <= end else []
            return [*sealed, *self.hot.index(log, max(first_id, end + 1), last_id)]

        return self._consistent(log, first_id, last_id, index)

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        def first_block_since(tier: TierReader | None, end: int) -> BlockRange | None:
            sealed = None if tier is None else tier.first_block_since(time, first_id)
            return sealed or self.hot.first_block_since(log, time, max(first_id, end + 1))

        return self._consistent(log, first_id, MAX_ID, first_block_since)

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        def statistics(tier: TierReader | None, end: int) -> BlockStatistics:
            sealed = [row.sums for row in tier.rows(first_id, end)] if tier is not None and first_id <= end else []
            return add_statistics([*sealed, self.hot.statistics(log, max(first_id, end + 1))])

        return self._consistent(log, first_id, MAX_ID, statistics)

    def _consistent(self, log: str, since: int, last_id: int, look: Callable[[TierReader | None, int], Found]) -> Found:
        """The result of *look* at the sealed objects of *log* (None: never any), which end at the id that it is given,
        and at the blocks after that, to *last_id*; again if blocks were moved meanwhile, as these would be in neither
        part."""
        while True:
            head = self.extent(log)
            tier = self.tier(log, since=since, head=head)
            end = 0 if tier is None else tier.last_id
            found = look(tier, end)
            if last_id <= end or self._hot_id(log) == head.hot_id:
                return found
            again = self.tier(log, since=since)
            if (0 if again is None else again.last_id) == end:
                return found

    def _hot_id(self, log: str) -> int:
        """The hot mark of *log*, which moves before blocks leave the store: a cheaper look than :meth:`extent`."""
        return decode_watermarks(self.hot.get_state(log, WATERMARKS).value).hot_id

    def check(self, log: str) -> Sequence[str]:
        return self.hot.check(log)

    def forget_blocks(self) -> None:
        """Let blocks be read from where they are stored, not from memory."""
        if isinstance(self.hot, CachesBlocks):
            self.hot.forget_blocks()

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        return self.hot.reclaim(log, below, max_bytes=max_bytes)

    def get_state(self, log: str, key: str) -> VersionedValue:
        return self.hot.get_state(log, key)

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        return self.hot.put_state(log, key, value, version=version)

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        return self.hot.states(log, prefix)

    def close(self) -> None:
        self.hot.close()

    def objects(self, url: str) -> TierObjects:
        """The objects at *url*."""
        return self._open_objects(url)

    def places(self, log: str) -> ObjectPlaces:
        """The location of the objects of *log*."""
        return ObjectPlaces(self.hot, log, self._open_objects)

    def tier(self, log: str, *, since: int = 0, head: Head | None = None) -> TierReader | None:
        """The sealed objects of *log*, as of now if *since* lies below the hot mark; None where it never had any.

        *head* is the log's, if it was just read.
        """
        hot_id = (head or self.extent(log)).hot_id
        known = self._tiers.get(log)
        if hot_id <= 1 or since >= hot_id:
            return known
        if known is None:
            from millstream.log.tiering.reading import TierReader

            with self._lock:
                known = self._tiers.setdefault(log, TierReader(self.hot, log, self.places(log)))
        known.refresh(hot_id)
        return known


def _up_to_hole(blocks: Sequence[StoredBlock]) -> Sequence[StoredBlock]:
    """Those of *blocks* before the first ids that none of them has: these may be in an object."""
    for count, (block, following) in enumerate(itertools.pairwise(blocks), 1):
        if following.first_id > block.last_id + 1:
            return blocks[:count]
    return blocks
