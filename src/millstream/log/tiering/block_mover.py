"""Moving the older blocks of a log into sealed objects: sealed, stored, verified, entered, and only then freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from millstream.core.clock import Clock
from millstream.log.backend import Backend, Head
from millstream.log.ids import BlockRange, IdRange
from millstream.log.tiering.leftovers import find_leftovers
from millstream.log.tiering.object_writer import ObjectWriter
from millstream.log.tiering.places import ObjectPlaces
from millstream.log.tiering.rewriting import rewrite
from millstream.log.tiering.sealed_objects import RowPage, SealedObject, make_place, read_pages
from millstream.log.tiering.settling import drop_trimmed, free_moved, move_blocks
from millstream.log.tiering.spec import Tiering, TieringResult


class BlockMover:
    """Moves blocks of *log* from *hot* to *places* by *policy*.

    What a log in a bucket has compacted is moved first: it is older. A run may be killed at any point: the next one
    finishes what it began, nothing is lost and nothing is stored twice. Two runs at once do the same work; one of them
    enters it.
    """

    def __init__(self, hot: Backend, log: str, places: ObjectPlaces, policy: Tiering, clock: Clock) -> None:
        self._hot = hot
        self._log = log
        self._places = places
        self._objects = places.tier
        self._policy = policy
        self._clock = clock
        self._writer = ObjectWriter(log, self._objects, policy.folder, parquet=policy.parquet)

    def run_once(self, *, partial: bool = False, stopped: Callable[[], bool] = bool) -> TieringResult:
        """Seal and move all that is due; with *partial* also what does not fill an object.

        Once *stopped* returns True, no further object is begun; the next run continues there. Raises
        :class:`StorageError` where the objects cannot be stored or do not come back as they were written, and
        :class:`DamagedLogError` where the log's own blocks are damaged: then nothing of them is freed.
        """
        freed = free_moved(self._hot, self._log)
        drop_trimmed(self._hot, self._log, self._places)
        rows = list(self._move_compacted(partial=partial, stopped=stopped))
        head = self._hot.head(self._log)
        due = self._with_place(self._due(head, partial=partial))
        new, moved = move_blocks(self._hot, self._log, self._writer, head, due, stopped=stopped)
        return TieringResult.of(self._log, (row.sums for row in [*rows, *new]), freed + moved)

    def _move_compacted(self, *, partial: bool, stopped: Callable[[], bool]) -> Iterator[SealedObject]:
        """Move the objects in the log's own bucket that are due, several into one."""
        while not stopped() and (due := self._compacted_due(partial=partial)):
            make_place(self._hot, self._log, self._objects)
            row = rewrite(self._places, self._writer, *due)
            if row is None:
                return
            yield row

    def _compacted_due(self, *, partial: bool) -> tuple[RowPage, Sequence[SealedObject]] | None:
        """The first objects, neighbours in a page, that are to be moved together.

        Objects that lie before one in the tier are due whatever their size: no more can join them.
        """
        pages = read_pages(self._hot, self._log)
        limit = self._first_kept([row for page in pages for row in page.rows])
        for page in pages:
            due: list[SealedObject] = []
            size = 0
            for row in page.rows:
                if row.in_store and row.last_id < limit:
                    due.append(row)
                    size += row.sums.bytes
                if due and (size >= self._policy.segment_bytes or not row.in_store):
                    return page, due
            if due and (partial or page is not pages[-1]):
                return page, due
        return None

    def _first_kept(self, rows: Sequence[SealedObject]) -> int:
        """The first id of *rows* that is too young to be moved, or among the newest bytes; beyond all without one."""
        limit = rows[-1].last_id + 1 if rows else 1
        kept, wanted = 0, self._policy.keep_bytes or 0
        if wanted:
            kept = self._hot.statistics(self._log, self._hot.head(self._log).hot_id).bytes
        for row in reversed(rows):
            if kept >= wanted:
                break
            kept, limit = kept + row.sums.bytes, row.first_id
        if self._policy.keep_age is None:
            return limit
        since = self._clock.now() - self._policy.keep_age
        return next((min(limit, row.first_id) for row in rows if (row.sums.max_received_at or 0) >= since), limit)

    def _due(self, head: Head, *, partial: bool) -> Iterator[IdRange]:
        """The ids of the next objects, in order, of the log whose head is *head*."""
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

    def _with_place(self, due: Iterable[IdRange]) -> Iterator[IdRange]:
        for ids in due:
            make_place(self._hot, self._log, self._objects)
            yield ids

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

    def leftovers(self) -> list[str]:
        """The names of objects that no row names and none ever will: runs that were killed have left them.

        Nothing deletes them by itself: a copy of this log's store that was made may name them.
        """
        return find_leftovers(self._objects, self._policy.folder, read_pages(self._hot, self._log))

    def remove_leftovers(self) -> list[str]:
        """Delete the :meth:`leftovers`; returns their names."""
        names = self.leftovers()
        for name in names:
            self._objects.delete(name)
        return names
