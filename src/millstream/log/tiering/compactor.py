"""Merging the commits of a log in a bucket into sealed objects in the same bucket, and small such objects into larger.

An object is stored and read back, then entered, and only then are the commits or the objects freed whose blocks it has.
A run may be killed at any point, and any number may run at once: of two that enter the same, one wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from millstream.log.backend import Backend, Head
from millstream.log.errors import DamagedLogError
from millstream.log.ids import BlockRange, IdRange
from millstream.log.tiering.leftovers import find_leftovers
from millstream.log.tiering.object_writer import ObjectWriter
from millstream.log.tiering.objects import KeepsObjects
from millstream.log.tiering.places import OWN_FOLDER, ObjectPlaces
from millstream.log.tiering.rewriting import rewrite
from millstream.log.tiering.sealed_objects import SealedObject, read_pages
from millstream.log.tiering.settling import drop_trimmed, free_moved, move_blocks
from millstream.log.tiering.spec import Compaction, TieringResult

_log = logging.getLogger(__name__)

KEPT_BLOCKS = 32
"""The newest blocks stay commits, so that followers which are a little behind read them as such."""

MERGED = 32
"""How many objects of a class of size are merged together."""

LISTED = 1000
"""How many objects one listing shows."""

_SMALL, _MEDIUM = 4 << 20, 32 << 20
"""Below how many bytes an object belongs to a class of size; larger ones are not merged."""


class Compactor:
    """Compacts *log* of *hot* by *rules*; *hot* keeps objects (:class:`KeepsObjects`)."""

    def __init__(self, hot: Backend, log: str, places: ObjectPlaces, rules: Compaction) -> None:
        assert isinstance(hot, KeepsObjects)
        self._hot, self._keeper, self._log, self._places, self._rules = hot, hot, log, places, rules
        self._objects = hot.own_objects(log)
        self._writer = ObjectWriter(log, self._objects, OWN_FOLDER, in_store=True)

    def run_once(self, *, stopped: Callable[[], bool] = bool) -> TieringResult:
        """Compact what is due. Once *stopped* returns True, no further object is begun.

        Raises :class:`StorageError`, and :class:`DamagedLogError` where commits are damaged: they are not freed.
        """
        if not self._is_due():
            return TieringResult(log=self._log)
        freed = free_moved(self._hot, self._log)
        drop_trimmed(self._hot, self._log, self._places)
        head = self._hot.head(self._log)
        rows, moved = move_blocks(self._hot, self._log, self._writer, head, self._due(head), stopped=stopped)
        merged = 0
        while not stopped() and self._merge():
            merged += 1
        self._sweep(always=merged > 0)
        return TieringResult.of(self._log, (row.sums for row in rows), freed + moved)

    def _is_due(self) -> bool:
        head = self._hot.head(self._log)
        if self._keeper.commits(self._log) >= self._rules.commits:
            return True
        kept = self._hot.statistics(self._log, max(head.hot_id, 1))
        return kept.bytes >= self._rules.bytes and kept.blocks > KEPT_BLOCKS

    def _due(self, head: Head) -> Iterator[IdRange]:
        """The ids of the next objects, in order, of the log whose head is *head*."""
        blocks = self._hot.ranges(self._log, head.hot_id, head.last_id)
        part: list[BlockRange] = []
        size = 0
        for block in blocks[: len(blocks) - min(KEPT_BLOCKS, len(blocks) // 4)]:
            if part and size + block.bytes > self._rules.bytes:
                yield IdRange(part[0].first_id, part[-1].last_id)
                part, size = [], 0
            part.append(block)
            size += block.bytes
        if part:
            yield IdRange(part[0].first_id, part[-1].last_id)

    def _merge(self) -> bool:
        """Merge one run of small objects; False where there is none."""
        pages = read_pages(self._hot, self._log)
        chosen = next(((page, rows) for page in pages if (rows := _mergeable(page.rows, self._rules.bytes))), None)
        if chosen is None:
            return False
        try:
            row = rewrite(self._places, self._writer, *chosen)
        except DamagedLogError as error:
            _log.warning("log %r: objects are not merged: %s", self._log, error)
            return False
        return row is not None

    def _sweep(self, *, always: bool) -> None:
        """Delete what is left over; in a log with many objects, whose listing is paid for, only *always*."""
        pages = read_pages(self._hot, self._log)
        if always or sum(len(page.rows) for page in pages) <= LISTED:
            for name in find_leftovers(self._objects, OWN_FOLDER, pages):
                self._objects.delete(name)


def _mergeable(rows: Sequence[SealedObject], most: int) -> list[SealedObject]:
    """The first run of small objects that are worth merging into one of at most *most* bytes; empty without one."""
    for bound in (_SMALL, _MEDIUM):
        run: list[SealedObject] = []
        for row in rows:
            run = [*run, row] if row.in_store and row.size < bound else []
            if len(run) == MERGED:
                return _within(run, most)
    return []


def _within(run: list[SealedObject], most: int) -> list[SealedObject]:
    total = 0
    for count, row in enumerate(run):
        total += row.size
        if total > most:
            return run[: max(count, 2)]
    return run
