"""Adoption: read once what other programs wrote, and remember what it hashed to.

A run lists the source beside the catalog. What is new, or has another size or version than it was adopted with, is
read; of the rest a share is read again, so that everything is within :data:`READ_PERIOD`. Bytes that changed while
neither size nor version did are *suspected rot*: the catalog keeps the checksum of before, and people are told. Groups
of items are committed as they are read, so an interrupted run resumes with the next one.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from millstream.mill.adoption.adoption_run import AdoptionRun, AdoptionSummary, AdoptionTarget
from millstream.mill.adoption.catalog import AdoptedItem
from millstream.mill.adoption.checksum_files import ChecksumList
from millstream.mill.adoption.due_items import DueItems, NewFiles, ReadItems, ReadJob
from millstream.mill.adoption.item_reader import ItemReader, ReadResult, plain_file
from millstream.mill.adoption.sources import SourceEntry, item_of
from millstream.mill.errors import MillError
from millstream.mill.merge_join import map_ahead
from millstream.stores.bulk import SMALL
from millstream.stores.folder import FolderStore
from millstream.stores.protocol import EntryKind, Store, item_not_found

READ_PERIOD = 30 * 24 * 3600 * 1_000_000
"""Within this many microseconds every item is read again, where runs are not further apart."""

GROUP = 1000
"""Items that are read, and committed, together."""

GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of a group of more than one item: what is read must not wait long to be recorded."""

_AHEAD = 4
"""Groups that are read while one is recorded."""


class ReadExtent(enum.StrEnum):
    """The extent to which unchanged items are read."""

    SHARE = "share"
    ALL = "all"
    NONE = "none"  # nothing is read, not even what is new: for a plan


OnProgress = Callable[[AdoptionSummary], object]
"""Called after each group of items, with what was found so far."""


class NotAdoptedError(MillError):
    """The item could not be adopted as it is now."""


class JobReader(Protocol):
    """Reads the items of a run, wherever that is done."""

    def read(self, space: str, due: Iterator[DueItems]) -> Iterator[ReadItems]:
        """The results of the items of *due*, in groups: each group is recorded before the next one is requested."""
        ...


class ThreadedReader:
    """Reads items of *source*, *threads* of them at the same time."""

    def __init__(self, source: Store, threads: int) -> None:
        self._source, self._threads = source, threads

    def read(self, space: str, due: Iterator[DueItems]) -> Iterator[ReadItems]:
        """The next parts are read while one is recorded: small files of a folder together, others one by one."""
        reader = ItemReader(self._source, space)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="mill-adopt") as pool:

            def read(some: DueItems) -> ReadItems:
                return self._read(pool, reader, some)

            yield from map_ahead(read, _grouped(due), _AHEAD)

    def _read(self, pool: ThreadPoolExecutor, reader: ItemReader, due: DueItems) -> ReadItems:
        files, sums, odd = self._read_files(due.files)
        jobs = odd + due.jobs
        done = self._read_together(jobs)
        alone = {
            job.content_id: pool.submit(reader.read, job.entry, job.algorithms, job.sha256)
            for job in jobs
            if job.content_id not in done
        }
        results = [(job, done.get(job.content_id) or alone[job.content_id].result()) for job in jobs]
        return ReadItems(files, sums, results)

    def _read_files(self, files: NewFiles) -> tuple[NewFiles, Sequence[str], list[ReadJob]]:
        """Those of *files* that are as they were listed, and what they hash to; the others are to be read alone."""
        if not files or not isinstance(self._source, FolderStore):
            return files, (), []
        versions = list(zip(files.content_ids, files.sizes, files.versions, strict=True))
        hashed = self._source.hash_versions(versions)
        sums = [sha256 for sha256 in hashed if sha256 is not None]
        if len(sums) == len(hashed):
            return files, sums, []
        places = range(len(hashed))
        odd = [files.job(place) for place in places if hashed[place] is None]
        return files.take([place for place in places if hashed[place] is not None]), sums, odd

    def _read_together(self, jobs: Sequence[ReadJob]) -> Mapping[str, ReadResult]:
        """The results of small plain files that are unchanged since the listing and have the expected checksum."""
        if not isinstance(self._source, FolderStore):
            return {}
        plain = [
            job for job in jobs if job.entry.kind == EntryKind.FILE and job.entry.size <= SMALL and not job.expected
        ]
        versions = [(job.entry.content_id, job.entry.size, job.entry.version) for job in plain]
        hashed = zip(plain, self._source.hash_versions(versions), strict=True)
        return {
            job.content_id: plain_file(job.entry, sha256)
            for job, sha256 in hashed
            if sha256 is not None and job.sha256 in (None, sha256)
        }


class Adopter:
    """Adopts the spaces of the source of *target*, to which nothing is ever written.

    Items are read by *reader*, without one by *threads* threads. ``touched`` are the items that the last run found with
    the bytes of before and another time.
    """

    def __init__(self, target: AdoptionTarget, *, threads: int = 4, reader: JobReader | None = None) -> None:
        self._target = target
        self._reader = reader or ThreadedReader(target.source, threads)
        self.touched: list[str] = []
        self._source, self._store, self._catalog, _, self._clock = target

    def adopt(
        self,
        space: str,
        *,
        reading: ReadExtent = ReadExtent.SHARE,
        checksums: ChecksumList | None = None,
        on_progress: OnProgress | None = None,
    ) -> AdoptionSummary:
        """Bring the catalog up to date with *space*.

        *checksums* are compared with what is read, and what they name is read; what differs is not adopted. Raises
        :class:`~millstream.stores.StoreError` where the source cannot be listed; what was committed stays.
        """
        now = self._clock.now()
        self._catalog.drop_unused_index()
        known = self._catalog.space(self._store, space)
        self._catalog.save_space(msgspec.structs.replace(known, begun_at=now))
        until = self._reread_until(space, reading, now if known.ended_at is None else known.ended_at, now)
        run = AdoptionRun(self._target, space, checksums=checksums, reread_until=until, ended_at=known.ended_at)
        if reading == ReadExtent.NONE:
            for due in run.due():
                run.plan(list(due.all_jobs()))
        else:
            for read in self._reader.read(space, run.due()):
                run.settle(read)
                if on_progress is not None:
                    on_progress(run.summary)
        run.finish()
        self.touched = run.touched
        self._catalog.save_space(msgspec.structs.replace(known, begun_at=now, ended_at=self._clock.now()))
        return run.summary

    def accept(self, space: str, content_id: str) -> AdoptedItem:
        """Adopt the bytes of *content_id* as they are now, whatever was recorded or said of them.

        Raises :class:`~millstream.stores.ItemNotFoundError`, :class:`NotAdoptedError` where they cannot be read.
        """
        now = self._catalog.get_many(self._store, space, [content_id]).get(content_id)
        item = item_of(self._source, space, content_id)
        if item is None:
            raise item_not_found(content_id, space, self._source.url)
        kind = {} if now is None else {"kind": now.kind}
        entry = SourceEntry(content_id, item.size, item.version, **kind)
        result = ItemReader(self._source, space).read(entry)
        if result.item is None or result.digests is None:
            reason = result.problem[1] if result.problem is not None else "it vanished during the run"
            raise NotAdoptedError(f"cannot read {content_id!r} in {self._source.url}/{space}: {reason}")
        accepted = AdoptionRun(self._target, space).accept(ReadJob(entry, now, ()), result.item, result.digests)
        self._catalog.remove_findings(self._store, space, [content_id])
        return accepted

    def _reread_until(self, space: str, reading: ReadExtent, ended_at: int, now: int) -> int | None:
        """Items are due that were last read at this time or before; None where none is."""
        if reading == ReadExtent.ALL:
            return now
        share = min(1.0, max(0, now - ended_at) / READ_PERIOD)
        items = self._catalog.totals(self._store, space).items
        due = self._catalog.reread_before(self._store, space, math.floor(share * items))
        return max(now - READ_PERIOD, due or 0)


def _grouped(due: Iterable[DueItems]) -> Iterator[DueItems]:
    """The items of *due* in groups of at most :data:`GROUP` items, and :data:`GROUP_BYTES` bytes."""
    group, size = DueItems(), 0
    for items in due:
        fits = len(items) <= GROUP and items.bytes <= GROUP_BYTES
        for some in (items,) if fits else items.each():
            if group and (len(group) + len(some) > GROUP or size + some.bytes > GROUP_BYTES):
                yield group
                group, size = DueItems(), 0
            group.extend(some)
            size += some.bytes
    if group:
        yield group
