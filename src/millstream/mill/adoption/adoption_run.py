"""One run over a source: what is to be read, and what follows from what was read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec

from millstream.core.clock import Clock
from millstream.core.sql import writing
from millstream.mill.adoption.catalog import (
    SCANNED_COLUMNS,
    AdoptedFiles,
    AdoptedItem,
    AdoptionCatalog,
    AdoptionFinding,
    ChecksumEvidence,
    FindingKind,
)
from millstream.mill.adoption.checksum_files import ChecksumList
from millstream.mill.adoption.due_items import DueItems, NewFiles, ReadItems, ReadJob, is_same
from millstream.mill.adoption.evidence import (
    evidence_of,
    is_recorded,
    list_origin,
    mimetype_of,
    mismatch,
    other_sums,
    type_of_name,
)
from millstream.mill.adoption.item_reader import ReadResult
from millstream.mill.adoption.rename_pairs import pair_renames
from millstream.mill.adoption.sources import (
    LISTED_COLUMNS,
    SourceEntry,
    SourceItem,
    item_of,
    listed_columns,
    problem_of_kind,
)
from millstream.mill.column_join import ItemColumns, join_columns
from millstream.mill.manifest import Manifest, ManifestEvent, ManifestRow
from millstream.mill.manifest_table import AddedItems
from millstream.mill.merge_join import groups
from millstream.stores.bulk import SMALL
from millstream.stores.folder import FolderStore
from millstream.stores.hashing import Digests
from millstream.stores.protocol import EntryKind, Store
from millstream.stores.sources import exclusion_of

_FILE = EntryKind.FILE.value
_GROUP = 1000

NOT_READ = "not-read:"
"""The prefix of the checksum of an item that a plan has not read; the mark of its version follows."""


_NOT_FOUND = (
    "it was not found when it was read, but it is there: another program replaced it, or the source is not mounted on "
    "every machine that reads it; the next run tries it again"
)

MOST_NAMED = 1000
"""Items that a summary names; all of them are counted."""


class AdoptionSummary(msgspec.Struct):
    """The result of a run of an adoption, in numbers of items. ``read`` and ``read_bytes`` count what was read.

    ``unread`` items are new or changed, and were not read because the run was for a plan; ``moved`` ones were renamed:
    their old names are among those that vanished, and their new ones count neither as added nor as changed;
    ``excluded`` ones were adopted, and are left out now. ``changed_items`` and ``renames`` (old and new name) are the
    first :data:`MOST_NAMED` of each.
    """

    listed: int = 0
    bytes: int = 0
    added: int = 0
    changed: int = 0
    returned: int = 0
    vanished: int = 0
    excluded: int = 0
    moved: int = 0
    suspected: int = 0
    findings: int = 0
    read: int = 0
    read_bytes: int = 0
    unread: int = 0
    unread_bytes: int = 0
    changed_items: list[str] = []
    renames: list[tuple[str, str]] = []


class AdoptionTarget(NamedTuple):
    """A source, which the settings call *store*, and where it is recorded what was adopted there."""

    source: Store
    store: str
    catalog: AdoptionCatalog
    manifest: Manifest
    clock: Clock


class AdoptionRun:
    """A run over *space* of *target*. :meth:`due` says what to read, :meth:`settle` takes what was read.

    Items that were last read at *reread_until* (microseconds) or before are read again; with None those only with which
    something was the matter. What was found before stays a finding until it is read and good.
    """

    def __init__(
        self,
        target: AdoptionTarget,
        space: str,
        *,
        checksums: ChecksumList | None = None,
        reread_until: int | None = None,
        ended_at: int | None = None,
    ) -> None:
        self.summary = AdoptionSummary()
        self.touched: list[str] = []
        self._source, self._store, self._catalog, self._manifest, self._clock = target
        self._space = space
        self._checksums, self._reread_until, self._ended_at = checksums, reread_until, ended_at
        self._before = {one.content_id: one for one in self._catalog.findings(self._store, space)}
        mismatch = FindingKind.CHECKSUM_MISMATCH
        self._rejections = {name: one for name, one in self._before.items() if one.kind == mismatch}
        self._findings: list[AdoptionFinding] = []
        self._unlisted: list[str] = []
        self._absent: list[AdoptedItem] = []
        self._relisted: list[AdoptedItem] = []
        self._added: set[str] = set()
        self._new: set[str] = set()
        self._changed: set[str] = set()
        self._exclusion = exclusion_of(self._source)
        self._named = {name for name in checksums or () if not self._exclusion.covers(name)}
        self._told_of = {*self._before, *(checksums or ())}
        self._has_plain_files = isinstance(self._source, FolderStore)

    def due(self) -> Iterator[DueItems]:
        """The items to read; all other listed items are counted."""
        listed, known = listed_columns(self._source, self._space), self._catalog.scan_columns(self._store, self._space)
        for run in join_columns(listed, known, LISTED_COLUMNS, SCANNED_COLUMNS):
            self._named.difference_update(run.keys)
            files, others = self._sort_out(run)
            jobs = self._compare(others) if others else []
            if files or jobs:
                yield DueItems(files, jobs)

    def _sort_out(self, run: ItemColumns) -> tuple[NewFiles, list[tuple[str, SourceEntry | None]]]:
        """Count what is as it was adopted; what is new and plain, and how all else is listed, known items included."""
        files, others = NewFiles(), list[tuple[str, SourceEntry | None]]()
        until = -1 if self._reread_until is None else self._reread_until
        ids, sizes, versions = files.content_ids, files.sizes, files.versions
        count = size_of_all = 0
        for content_id, size, version, kind, was_size, was_version, was_kind, read_at, settled in zip(
            run.keys, *run.columns, strict=True
        ):
            told_of = content_id in self._told_of
            if was_kind is None and kind == _FILE and size <= SMALL and self._has_plain_files and not told_of:
                ids.append(content_id)
                sizes.append(size)
                versions.append(version)
            elif (
                told_of or not settled or read_at <= until or (size, version, kind) != (was_size, was_version, was_kind)
            ):
                others.append((content_id, None if kind is None else SourceEntry(content_id, size, version, kind)))
                continue
            count += 1
            size_of_all += size
        self.summary.listed += count
        self.summary.bytes += size_of_all
        return files, others

    def _compare(self, listed: Sequence[tuple[str, SourceEntry | None]]) -> list[ReadJob]:
        """What of *listed* is to be read; of all else it is remembered what there is to be said of it."""
        rows = self._catalog.get_many(self._store, self._space, [content_id for content_id, _ in listed])
        jobs = []
        for content_id, entry in listed:
            job = self._compare_one(content_id, entry, rows.get(content_id))
            if job is not None:
                jobs.append(job)
        return jobs

    def _compare_one(self, content_id: str, entry: SourceEntry | None, row: AdoptedItem | None) -> ReadJob | None:
        problem = None if entry is None else problem_of_kind(content_id, entry.kind)
        if problem is not None:
            if content_id.endswith("/") or not content_id:
                self._unlisted.append(content_id)
            self._find(content_id, *problem)
        elif entry is None:
            if row is not None and self._exclusion.covers(content_id):
                self._leave_out(row)
            elif row is not None:
                self._absent.append(row)
        else:
            self.summary.listed += 1
            self.summary.bytes += entry.size
            job = ReadJob(entry, row, self._checksums.get(content_id) if self._checksums is not None else ())
            if self._is_rejected(job):
                self._findings.append(self._rejections[content_id])
            elif self._is_due(job):
                return job
            elif row is not None and not row.is_there:
                self._return(row)
        return None

    def _is_rejected(self, job: ReadJob) -> bool:
        """Whether this version was read before, and did not match what people said of it."""
        found = self._rejections.get(job.content_id)
        return found is not None and found.version == job.entry.version and not job.expected

    def _is_due(self, job: ReadJob) -> bool:
        row = job.row
        if row is None or not is_same(job.entry, row) or row.suspected is not None or job.content_id in self._before:
            return True
        if job.expected and (row.origin != ChecksumEvidence.LISTED or not is_recorded(job.expected, row)):
            return True
        return self._reread_until is not None and row.last_read_at <= self._reread_until

    def _return(self, row: AdoptedItem) -> None:
        """The item is there again, as it was: it was put back, or is not left out any more."""
        self.summary.returned += 1
        self._relisted.append(msgspec.structs.replace(row, vanished_at=None, renamed_to=None, excluded_at=None))

    def _leave_out(self, row: AdoptedItem) -> None:
        """People do not want it any more; its copies are kept, and nothing is said to have happened to it."""
        self.summary.excluded += 1
        if row.excluded_at is None:
            now = self._clock.now()
            self._relisted.append(msgspec.structs.replace(row, excluded_at=now, vanished_at=None, renamed_to=None))

    def settle(self, read: ReadItems) -> None:
        """Record what was read: in the manifest first, so that what the catalog has is there, too."""
        now = self._clock.now()
        items, events, returned = [], [], []
        for job, result in read.results:
            if result.item is None or result.digests is None:
                self._settle_unread(job, result)
                continue
            self.summary.read += 1
            self.summary.read_bytes += result.digests.size
            item = self._adopted(job, result.item, result.digests, now)
            if item is not None:
                items.append(item)
                if job.row is None or (item.sha256, item.adopted_at) != (job.row.sha256, job.row.adopted_at):
                    events.append(self._event(item))
                elif not job.row.is_there:
                    returned.append(item)
                if job.row is None or not job.row.is_there:
                    self._added.add(item.content_id)
        files = self._adopted_files(read.files, read.sums, now)
        with self._recording():
            self._manifest.writer.record([*events, *self._return_events(returned)])
            self._manifest.writer.record_added(
                AddedItems(self._store, self._space, now, files.content_ids, files.sums, files.sizes, files.mimetypes)
            )
            self._catalog.save(items)
            self._catalog.save_files(files)

    def _adopted_files(self, files: NewFiles, sums: Sequence[str], now: int) -> AdoptedFiles:
        """The rows of *files*, as :meth:`_adopted` makes them one by one."""
        self.summary.read += len(files)
        self.summary.added += len(files)
        self.summary.read_bytes += sum(files.sizes)
        self._new.update(files.content_ids)
        self._added.update(files.content_ids)
        types = [type_of_name(content_id) for content_id in files.content_ids]
        return AdoptedFiles(self._store, self._space, now, files.content_ids, files.sizes, files.versions, sums, types)

    def _recording(self) -> AbstractContextManager[object]:
        """One transaction for both, where they are in one database."""
        together = self._manifest.writer.engine is self._catalog.engine
        return writing(self._catalog.engine) if together else contextlib.nullcontext()

    def _settle_unread(self, job: ReadJob, result: ReadResult) -> None:
        if result.problem is not None:
            self._find(job.content_id, *result.problem)
        elif item_of(self._source, self._space, job.content_id) is not None:
            self._find(job.content_id, FindingKind.UNSTABLE, _NOT_FOUND)
        elif job.row is not None:
            self._absent.append(job.row)

    def accept(self, job: ReadJob, item: SourceItem, digests: Digests) -> AdoptedItem:
        """Adopt what was read as a new version, whatever is recorded."""
        now = self._clock.now()
        known = self._manifest.get(self._store, self._space, job.content_id)
        at = max(now, known.modified if known is not None else 0)
        accepted = msgspec.structs.replace(self._item(job, item, digests, now), adopted_at=at)
        self._manifest.writer.record([self._event(accepted)])
        self._catalog.save([accepted])
        return accepted

    def plan(self, jobs: Sequence[ReadJob]) -> None:
        """Record *jobs* without reading them, those that changed under checksums that nothing else has."""
        now = self._clock.now()
        items = []
        for job in jobs:
            self.summary.unread += 1
            self.summary.unread_bytes += job.entry.size
            if job.sha256 is None:
                self._count(job, None)
                item = SourceItem(job.entry.size, job.entry.version)
                digests = Digests(job.entry.size, {"sha256": f"{NOT_READ}{job.content_id}:{job.entry.version}"})
                items.append(self._item(job, item, digests, now))
            elif job.row is not None and not job.row.is_there:
                self._return(job.row)
        self._manifest.writer.record([self._event(item) for item in items])
        self._catalog.save(items)

    def _adopted(self, job: ReadJob, item: SourceItem, digests: Digests, now: int) -> AdoptedItem | None:
        """The row of an item that was read; None where it is not adopted."""
        reason = mismatch(job.expected, item, digests, self._checksums)
        if reason is not None:
            self._find(job.content_id, FindingKind.CHECKSUM_MISMATCH, reason, version=item.version)
            return None
        row = job.row
        if row is not None and (row.size, row.version, row.kind) == (item.size, item.version, job.entry.kind):
            if row.sha256 != digests.sha256:
                return self._suspect(row, digests)
            if not row.is_there:
                self.summary.returned += 1
            origin = evidence_of(job, item, digests) if job.expected else row.origin
            return msgspec.structs.replace(
                row, last_read_at=now, suspected=None, vanished_at=None, renamed_to=None, origin=origin,
                excluded_at=None, sums={**row.sums, **other_sums(digests)},
            )  # fmt: skip
        self._count(job, digests)
        return self._item(job, item, digests, now)

    def _suspect(self, row: AdoptedItem, digests: Digests) -> AdoptedItem:
        self.summary.suspected += 1
        self._find(
            row.content_id,
            FindingKind.SUSPECTED_ROT,
            f"its bytes changed and neither its time nor its size did: {digests.sha256} instead of {row.sha256}",
            version=row.version,
        )
        return msgspec.structs.replace(
            row, suspected=digests.sha256, vanished_at=None, renamed_to=None, excluded_at=None
        )

    def _count(self, job: ReadJob, digests: Digests | None) -> None:
        if job.row is None:
            self.summary.added += 1
            self._new.add(job.content_id)
        elif digests is None or digests.sha256 != job.row.sha256:
            self.summary.changed += 1
            self._changed.add(job.content_id)
        elif job.row.is_there:
            self.touched.append(job.content_id)

    def _item(self, job: ReadJob, item: SourceItem, digests: Digests, now: int) -> AdoptedItem:
        row = job.row
        same = row is not None and row.sha256 == digests.sha256 and row.is_there
        known = self._manifest.get(self._store, self._space, job.content_id) if row is not None else None
        adopted_at = row.adopted_at if row is not None and same else max(now, known.modified if known else 0)
        return AdoptedItem(
            store=self._store,
            space=self._space,
            content_id=job.content_id,
            kind=job.entry.kind,
            size=item.size,
            version=item.version,
            sha256=digests.sha256,
            sums=other_sums(digests),
            origin=evidence_of(job, item, digests),
            adopted_at=adopted_at,
            last_read_at=now,
            mimetype=mimetype_of(job, item),
            properties=item.properties,
        )

    def _event(self, item: AdoptedItem) -> ManifestEvent:
        return seen_event(item, None)

    def _return_events(self, items: Sequence[AdoptedItem]) -> list[ManifestEvent]:
        """Events for those of *items*, which are there again, that a tombstone was left for, or that lost their row."""
        rows = self._manifest.get_many(self._store, self._space, [item.content_id for item in items]) if items else {}
        known = [(item, rows.get(item.content_id)) for item in items]
        return [seen_event(item, row) for item, row in known if row is None or row.deleted]

    def finish(self) -> None:
        """Everything was listed: record what vanished, what was renamed, and what people have to look at."""
        now = self._clock.now()
        gone = [row for row in self._absent if not self._is_hidden(row.content_id)]
        renamed = self._renamed(gone)
        for items in groups((item for item in self._relisted if item.is_there), _GROUP):
            self._manifest.writer.record(self._return_events(items))
        self._catalog.save([*self._relisted, *(_vanished(row, renamed.get(row.content_id), now) for row in gone)])
        self._summarize(len(gone), renamed)
        hidden = [one for one in self._before.values() if self._is_hidden(one.content_id)]
        self._catalog.replace_findings(self._store, self._space, [*hidden, *self._findings, *self._not_there(now)])
        self.summary.findings = len(self._catalog.findings(self._store, self._space))

    def _summarize(self, gone: int, renamed: Mapping[str, str]) -> None:
        """Count what is known once everything was listed; a new name of a renamed item is no addition and no change."""
        summary, new_names = self.summary, set(renamed.values())
        summary.vanished, summary.moved = gone, len(renamed)
        summary.added -= len(self._new & new_names)
        summary.changed -= len(self._changed & new_names)
        summary.changed_items = sorted(self._changed - new_names)[:MOST_NAMED]
        summary.renames = sorted(renamed.items())[:MOST_NAMED]

    def _renamed(self, gone: Sequence[AdoptedItem]) -> Mapping[str, str]:
        """The new names of those of *gone* that were renamed, by their old ones."""
        holders = self._catalog.holders(self._store, self._space, {row.sha256 for row in gone})
        return pair_renames(gone, [item for item in holders if item.is_there], self._is_new)

    def _is_new(self, item: AdoptedItem) -> bool:
        """Whether *item* got its bytes in this run, or in one before it that was interrupted and paired nothing."""
        return item.content_id in self._added or (self._ended_at is not None and item.adopted_at > self._ended_at)

    def _is_hidden(self, content_id: str) -> bool:
        """Whether *content_id* lies where the source could not be listed, so that it is unknown whether it exists."""
        return any(content_id.startswith(folder) for folder in self._unlisted)

    def _not_there(self, now: int) -> Iterator[AdoptionFinding]:
        """Findings of items that lists of checksums name, and that are not there."""
        there = {one.content_id for one in self._findings}
        for name in sorted(self._named - there):
            if self._is_hidden(name):
                continue
            yield self._finding(name, FindingKind.NOT_THERE, f"{list_origin(self._checksums)} names it", now)
        if self._checksums is None:
            for found in self._before.values():
                if found.kind == FindingKind.NOT_THERE and not self._is_there(found.content_id):
                    yield found

    def _is_there(self, content_id: str) -> bool:
        return bool(self._catalog.get_many(self._store, self._space, [content_id])) or any(
            one.content_id == content_id for one in self._findings
        )

    def _find(self, content_id: str, kind: FindingKind, detail: str, *, version: str = "") -> None:
        rejected = self._rejections.get(content_id)
        if rejected is not None and kind in (FindingKind.UNREADABLE, FindingKind.UNSTABLE):
            self._findings.append(rejected)  # it was not read: else the next run would adopt the same bytes
        else:
            self._findings.append(self._finding(content_id, kind, detail, self._clock.now(), version))

    def _finding(self, content_id: str, kind: FindingKind, detail: str, now: int, version: str = "") -> AdoptionFinding:
        return AdoptionFinding(
            store=self._store,
            space=self._space,
            content_id=content_id,
            kind=kind.value,
            detail=detail,
            version=version,
            found_at=now,
        )


def seen_event(item: AdoptedItem, row: ManifestRow | None) -> ManifestEvent:
    """The event that records an adopted *item*, which is there, over its *row*: even a later tombstone is obsolete."""
    at = item.adopted_at if row is None else max(item.adopted_at, row.modified)
    return ManifestEvent(item.store, item.space, item.content_id, at, item.sha256, item.size, item.mimetype)


def _vanished(row: AdoptedItem, renamed_to: str | None, now: int) -> AdoptedItem:
    since = now if row.vanished_at is None else row.vanished_at
    return msgspec.structs.replace(row, vanished_at=since, renamed_to=renamed_to, suspected=None, excluded_at=None)
