"""Reading blocks out of sealed objects: by ranges, with the indexes that were used last kept in memory."""

from __future__ import annotations

import functools
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from millstream.log.backend import Backend, StoredBlock
from millstream.log.block_location import BlockLocation
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.tiering.format import SealError, decode_index, summarize
from millstream.log.tiering.places import ObjectPlaces
from millstream.log.tiering.seal import OTHER_TOTALS, read_index
from millstream.log.tiering.sealed_objects import SealedObject, read_objects
from millstream.log.tiering.spec import TierInfo

P = ParamSpec("P")
T = TypeVar("T")

INDEX_BYTES = 32 << 20
"""How much of indexes is kept in memory: those of about 60 GiB of objects with blocks of 100 kB."""

_INDEX_FIELDS = (
    "first_id", "last_id", "bytes", "min_event_time", "max_event_time", "min_received_at", "max_received_at"
)  # fmt: skip
SIDE_BY_SIDE = 8
"""How many indexes are read at once, at most."""

MOST_INDEXED = 64
"""If more objects are requested at once, each counts as one range, so that not all their indexes are fetched."""


class _ObjectsReplacedError(Exception):
    """Objects that were known were merged into others: what was asked has to be asked again."""


def _asked_again(method: Callable[Concatenate[TierReader, P], T]) -> Callable[Concatenate[TierReader, P], T]:
    """*method*, called again as long as objects were replaced while it ran."""

    @functools.wraps(method)
    def ask(self: TierReader, /, *arguments: P.args, **options: P.kwargs) -> T:
        while True:
            try:
                return method(self, *arguments, **options)
            except _ObjectsReplacedError:
                continue

    return ask


class TierReader:
    """The sealed objects of *log*, as they were when it was last looked. Thread-safe."""

    def __init__(self, backend: Backend, log: str, places: ObjectPlaces) -> None:
        self._backend = backend
        self._log = log
        self.places = places
        self._lock = threading.Lock()
        self._rows: list[SealedObject] = []
        self._lasts: list[int] = []
        self._indexes: OrderedDict[str, Any] = OrderedDict()
        self._hot_id = 0
        self._looks = self._latest = 0

    @property
    def last_id(self) -> int:
        """The last id that is in an object, as far as is known; 0 where there is none."""
        lasts = self._lasts
        return lasts[-1] if lasts else 0

    def refresh(self, hot_id: int) -> None:
        """Look which objects there are, unless the hot mark *hot_id* has not moved since."""
        if hot_id != self._hot_id:
            self._look(hot_id)

    def look_again(self) -> None:
        """Look which objects there are, whatever the marks are."""
        self._look()

    def _look(self, hot_id: int | None = None) -> None:
        """Read the rows, which have all objects below *hot_id*; those that a later look has found stay."""
        with self._lock:
            self._looks += 1
            look = self._looks
        rows = read_objects(self._backend, self._log)
        with self._lock:
            if look < self._latest:
                return
            self._latest, self._rows, self._lasts = look, rows, [row.last_id for row in rows]
            if hot_id is not None:
                self._hot_id = hot_id

    def still_has(self, row: SealedObject) -> bool:
        """Whether *row* is a row of the log, as of now: if not, others have taken its place, or it was trimmed."""
        self.look_again()
        return row in self.rows(row.first_id, row.last_id)

    def info(self, first_id: int) -> TierInfo | None:
        """What there is of *first_id* and what comes after it, from the rows alone; None where nothing is."""
        rows = self.rows(first_id, self.last_id)
        if not rows:
            return None
        return TierInfo(
            url=self.places.url(rows),
            objects=len(rows),
            bytes=sum(row.size for row in rows),
            first_id=rows[0].first_id,
            last_id=rows[-1].last_id,
        )

    def rows(self, first_id: int, last_id: int) -> list[SealedObject]:
        """The objects that hold *first_id* to *last_id*, in order."""
        with self._lock:
            start, stop = bisect_left(self._lasts, first_id), bisect_left(self._lasts, last_id) + 1
            return [row for row in self._rows[start:stop] if row.first_id <= last_id]

    @_asked_again
    def read(self, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        """As :meth:`millstream.log.backend.Backend.read`. A damaged object comes as one damaged block of its ids."""
        for row in self.rows(first_id, last_id):
            try:
                entries = self._index(row)
            except SealError:
                return [StoredBlock(row.first_id, row.last_id, b"")]
            if entries is None:
                continue
            chosen = _within(_select(entries, first_id, last_id), max_bytes)
            found = self._blocks(row, chosen)
            if found:
                return found
        return []

    @_asked_again
    def ranges(self, first_id: int, last_id: int) -> list[BlockRange]:
        """As :meth:`millstream.log.backend.Backend.ranges`; of more than 64 objects each is one range."""
        rows = self.rows(first_id, last_id)
        if len(rows) > MOST_INDEXED:
            return [BlockRange(row.first_id, row.last_id, row.sums.bytes) for row in rows]
        return [found for row in rows for found in self._ranges(row, first_id, last_id)]

    @_asked_again
    def index(self, first_id: int, last_id: int) -> list[IndexEntry]:
        """As :meth:`millstream.log.backend.Backend.index`; an object that is damaged or gone has no entries."""
        found: list[IndexEntry] = []
        for row in self.rows(first_id, last_id):
            try:
                entries = self._index(row)
            except SealError:
                continue
            if entries is not None:
                chosen = _select(entries, first_id, last_id)[list(_INDEX_FIELDS)].tolist()
                found += [IndexEntry(*entry) for entry in chosen]
        return found

    @_asked_again
    def locate(self, first_id: int, last_id: int) -> list[BlockLocation]:
        """The location of the blocks in the log's own bucket; none of a damaged or missing object. Indexes are read in
        parallel.
        """
        own, found = self.places.own, []
        if own is None:
            return []
        rows = [row for row in self.rows(first_id, last_id) if row.in_store]
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="log-indexes") as pool:
            for row, entries in zip(rows, pool.map(self._sound_index, rows), strict=True):
                if entries is not None:
                    chosen = _select(entries, first_id, last_id)[["first_id", "last_id", "offset", "bytes"]].tolist()
                    name = own.root + row.name
                    found += [BlockLocation(first, last, name, begin, size, b"") for first, last, begin, size in chosen]
        return found

    @_asked_again
    def first_block_since(self, time: int, first_id: int) -> BlockRange | None:
        """As :meth:`millstream.log.backend.Backend.first_block_since`."""
        for row in self.rows(first_id, self.last_id):
            if row.sums.max_received_at is not None and row.sums.max_received_at >= time:
                try:
                    entries = self._index(row)
                except SealError:
                    return BlockRange(row.first_id, row.last_id, row.sums.bytes)
                if entries is None:
                    continue
                late = entries[(entries["max_received_at"] >= time) & (entries["last_id"] >= first_id)][:1]
                if len(late):
                    return BlockRange(*late[["first_id", "last_id", "bytes"]].tolist()[0])
        return None

    def _ranges(self, row: SealedObject, first_id: int, last_id: int) -> list[BlockRange]:
        try:
            entries = self._index(row)
        except SealError:
            entries = None
        if entries is None:
            return [BlockRange(row.first_id, row.last_id, row.sums.bytes)]
        chosen = _select(entries, first_id, last_id)[["first_id", "last_id", "bytes"]].tolist()
        return [BlockRange(*found) for found in chosen]

    def _blocks(self, row: SealedObject, entries: Any) -> list[StoredBlock]:
        """The blocks *entries* of one object, in one read; nothing where it is gone."""
        chosen = entries[["first_id", "last_id", "offset", "bytes"]].tolist()
        begin = chosen[0][2]
        data = self.places.of(row).read(row.name, begin, chosen[-1][2] + chosen[-1][3] - begin)
        if data is None:
            self._refuse_replaced(row)
            return []
        return [
            StoredBlock(first, last, data[offset - begin : offset - begin + size])
            for first, last, offset, size in chosen
        ]

    def _refuse_replaced(self, row: SealedObject) -> None:
        if not self.still_has(row):
            raise _ObjectsReplacedError

    def _sound_index(self, row: SealedObject) -> Any:
        """The index of an object; None where that is damaged or gone."""
        try:
            return self._index(row)
        except SealError:
            return None

    def _index(self, row: SealedObject) -> Any:
        """The index of an object; None where it is gone. Raises :class:`SealError`."""
        with self._lock:
            if row.name in self._indexes:
                self._indexes.move_to_end(row.name)
                return self._indexes[row.name]
        data = read_index(self.places.of(row), row)
        if data is None:
            self._refuse_replaced(row)
            return None
        entries = decode_index(data)
        if summarize(entries) != row.sums:
            raise SealError(OTHER_TOTALS)
        with self._lock:
            self._indexes[row.name] = entries
            size = sum(kept.nbytes for kept in self._indexes.values())
            while size > INDEX_BYTES and len(self._indexes) > 1:
                size -= self._indexes.popitem(last=False)[1].nbytes
        return entries


def _select(entries: Any, first_id: int, last_id: int) -> Any:
    start = int(np.searchsorted(entries["last_id"], first_id, "left"))
    return entries[start : int(np.searchsorted(entries["first_id"], last_id, "right"))]


def _within(entries: Any, max_bytes: int) -> Any:
    """As many of *entries* as take *max_bytes*, one at least."""
    count = int(np.searchsorted(np.cumsum(entries["bytes"], dtype=np.int64), max_bytes, "right"))
    return entries[: max(count, 1)]
