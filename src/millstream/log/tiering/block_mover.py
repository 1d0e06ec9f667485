"""Moving the older blocks of a log into sealed objects: sealed, stored, verified, entered, and only then freed."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from millstream.core.clock import Clock
from millstream.log.backend import Backend, Head, StoredBlock
from millstream.log.errors import DamagedLogError, StorageError
from millstream.log.ids import BlockRange, IdRange
from millstream.log.reading.scan import FETCH_BYTES
from millstream.log.tiering.objects import TierObjects
from millstream.log.tiering.seal import find_fault, find_fault_of_parquet, seal
from millstream.log.tiering.sealed_objects import (
    ParquetCopy,
    SealedObject,
    add_object,
    drop_objects,
    read_objects,
)
from millstream.log.tiering.spec import Tiering
from millstream.log.upkeep.trimming import free_blocks, raise_watermarks

_log = logging.getLogger(__name__)


class TieringResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one run has moved: so many ``objects`` with ``messages`` and ``bytes``, and what the store freed."""

    log: str
    objects: int = 0
    messages: int = 0
    bytes: int = 0
    freed_bytes: int = 0


class BlockMover:
    """Moves blocks of *log* from *hot* to *objects* by *policy*.

    A run may be killed at any point: the next one finishes what it began, nothing is lost and nothing is stored twice.
    Two runs at once do the same work; one of them enters it.
    """

    def __init__(self, hot: Backend, log: str, objects: TierObjects, policy: Tiering, clock: Clock) -> None:
        self._hot = hot
        self._log = log
        self._objects = objects
        self._policy = policy
        self._clock = clock

    def run_once(self, *, partial: bool = False, stopped: Callable[[], bool] = bool) -> TieringResult:
        """Seal and move all that is due; with *partial* also what does not fill an object.

        Once *stopped* says so, no further object is begun; the next run continues there.
        Raises :class:`StorageError` where the objects cannot be stored or do not come back as they were written, and
        :class:`DamagedLogError` where the log's own blocks are damaged: then nothing of them is freed.
        """
        self.drop_trimmed()
        freed = self._settle()
        rows: list[SealedObject] = []
        for ids in self._due(partial=partial):
            row = None if stopped() else self._move(ids)
            if row is None:
                break  # or another process has entered these messages
            rows.append(row)
            freed += self._settle()
        return TieringResult(
            log=self._log,
            objects=len(rows),
            messages=sum(row.sums.count for row in rows),
            bytes=sum(row.sums.bytes for row in rows),
            freed_bytes=freed,
        )

    def drop_trimmed(self) -> int:
        """Delete the objects whose messages were all trimmed, then their rows; returns how many bytes those had."""
        head = self._hot.head(self._log)
        freed = 0
        for row in read_objects(self._hot, self._log):
            if row.last_id < head.first_id:
                if row.parquet is not None:
                    self._objects.delete(row.parquet.name)
                self._objects.delete(row.name)
                freed += row.size
        if freed:
            drop_objects(self._hot, self._log, head.first_id)
        return freed

    def _settle(self) -> int:
        """Move the hot mark over everything that was entered, and free it; returns the bytes that were freed."""
        rows = read_objects(self._hot, self._log)
        if rows:
            raise_watermarks(self._hot, self._log, hot_id=rows[-1].last_id + 1)
        return free_blocks(self._hot, self._log)

    def _due(self, *, partial: bool) -> Iterator[IdRange]:
        """The ids of the next objects, in order."""
        head = self._hot.head(self._log)
        blocks = self._hot.ranges(self._log, head.hot_id, head.last_id)
        limit = min(self._older_than(head), self._beyond_newest(blocks))
        first_id, last_id, size = 0, 0, 0
        for block in blocks:
            if block.last_id >= limit:
                break
            first_id = first_id or block.first_id
            size += block.bytes
            if size >= self._policy.segment_bytes:
                yield IdRange(first_id, block.last_id)
                first_id, size = 0, 0
            last_id = block.last_id
        if partial and first_id:
            yield IdRange(first_id, last_id)

    def _older_than(self, head: Head) -> int:
        """The first id that is too young to be moved."""
        if self._policy.keep_age is None:
            return head.last_id + 1
        young = self._hot.first_block_since(self._log, self._clock.now() - self._policy.keep_age, head.hot_id)
        return head.last_id + 1 if young is None else young.first_id

    def _beyond_newest(self, blocks: Sequence[BlockRange]) -> int:
        """The first id of the newest blocks that have at least the bytes to be kept."""
        kept, wanted = 0, self._policy.keep_bytes or 0
        for block in reversed(blocks):
            if kept >= wanted:
                return block.last_id + 1
            kept += block.bytes
        return blocks[0].first_id if blocks else 1

    def _move(self, ids: IdRange) -> SealedObject | None:
        """Seal *ids*, store the object, read it back and enter it; None where another process was quicker."""
        with tempfile.TemporaryFile(prefix="millstream-tier-") as file:
            sealed = self._seal(ids, file)
            if sealed is None:
                return None
            self._store(sealed.name, sealed.sha256, file, lambda: find_fault(self._objects, self._log, sealed))
            copy = self._store_parquet(sealed, file) if self._policy.parquet else None
        row = msgspec.structs.replace(sealed, parquet=copy)
        return row if add_object(self._hot, self._log, row) else None

    def _seal(self, ids: IdRange, file: BinaryIO) -> SealedObject | None:
        """Seal *ids* into *file*; None where they were moved or trimmed meanwhile, which looks like damage."""
        before = self._hot.head(self._log).hot_id
        try:
            row = seal(self._log, self._policy.folder, self._blocks(ids), file)
            if (row.first_id, row.last_id) != (ids.first, ids.last):
                raise DamagedLogError(
                    f"ids {ids.first} to {ids.last} of log {self._log!r} were to be moved to the tier, "
                    f"but {row.first_id} to {row.last_id} were found; `millstream log verify "
                    f"{self._log}` lists all damage"
                )
        except DamagedLogError:
            if self._hot.head(self._log).hot_id > before:
                return None
            raise
        return row

    def _store_parquet(self, row: SealedObject, sealed: BinaryIO) -> ParquetCopy:
        from millstream.log.tiering.parquet import write_parquet

        with tempfile.TemporaryFile(prefix="millstream-tier-") as file:
            copy = write_parquet(row, sealed, file)
            self._store(copy.name, copy.sha256, file, lambda: find_fault_of_parquet(self._objects, copy))
        return copy

    def _store(self, name: str, sha256: str, file: BinaryIO, find: Callable[[], str | None]) -> None:
        """Store *file* under *name*; what *find* has fault with is replaced once."""
        for _ in range(2):
            file.seek(0)
            self._objects.put(name, file, sha256=sha256)
            fault = find()
            if fault is None:
                return
            _log.warning("%s/%s is stored again: %s", self._objects.url, name, fault)
            self._objects.delete(name)
        raise StorageError(
            f"{self._objects.url}/{name} reads back differently from what was written: {fault}. Nothing "
            "was freed; repair the object store, and run the command again"
        )

    def _blocks(self, ids: IdRange) -> Iterator[StoredBlock]:
        first_id = ids.first
        while first_id <= ids.last:
            found = self._hot.read(self._log, first_id, ids.last, max_bytes=FETCH_BYTES)
            if not found:
                return
            yield from found
            first_id = found[-1].last_id + 1

    def leftovers(self) -> list[str]:
        """The names of objects that no row names and none ever will: runs that were killed have left them.

        Nothing deletes them by itself: a copy of this log's store that was made may name them.
        """
        rows = read_objects(self._hot, self._log)
        known, last_id = {row.name for row in rows}, rows[-1].last_id if rows else 0
        names = self._objects.names(f"{self._policy.folder}/")
        return [name for name in names if name.removesuffix(".parquet") not in known and _first_id(name) <= last_id]

    def remove_leftovers(self) -> list[str]:
        """Delete the :meth:`leftovers`; returns their names."""
        names = self.leftovers()
        for name in names:
            self._objects.delete(name)
        return names


def _first_id(name: str) -> int:
    """The first id that the name of an object states; beyond every id where it states none."""
    digits = name.rpartition("/")[2][:20]
    return int(digits) if len(digits) == 20 and digits.isdigit() else 2**63
