"""The simple cases of duplication, many items at a time: small items that the destination lacks, and correct copies.
Nearly all tasks of a first copy and of a loop are of these kinds. All others go to the processor of single tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplication_decision import (
    DuplicationAct,
    DuplicationAction,
    EndState,
    ObservedEnd,
    SourceRecord,
    clean_properties,
    decide_duplication,
    is_unaudited,
)
from millstream.mill.errors import UnknownStoreError
from millstream.mill.manifest import Manifest, ManifestEvent, ManifestRow
from millstream.mill.policies.policy import Pair
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import Duplicate
from millstream.stores.bulk import (
    SMALL,
    Bulk,
    FetchedItem,
    NewItem,
    bulk_of,
    fetches_at_once,
    folder_of,
    listed_infos,
    takes_files,
)
from millstream.stores.protocol import ItemInfo, ItemNotFoundError, SpaceNotFoundError, StoreError

HELD = 8 * SMALL
"""Bytes of items that one thread holds in memory."""

_NOT_THERE = ObservedEnd(EndState.NO_ITEM)
_ABSENT = (ItemNotFoundError, SpaceNotFoundError)

AuditSums = Callable[[str, str, Sequence[str]], Mapping[str, str | None]]
"""Checksums that the audit of a store has recorded for items of a space, by id."""


def duplicate_group(
    providers: ConfiguredStores, manifest: Manifest, tasks: Sequence[Duplicate], audit_sums: AuditSums
) -> Sequence[TaskResult | None]:
    """The result of each of *tasks*; None for a task that must be done alone. That includes a task whose source differs
    from *audit_sums*.
    """
    results: dict[Duplicate, TaskResult] = {}

    def place(task: Duplicate) -> tuple[str, str, str]:
        return task.source, task.destination, task.space

    for (source, destination, space), some in groupby(sorted(set(tasks), key=place), key=place):
        ids = [task.content_id for task in some if task.content_id]
        try:
            ends = bulk_of(providers[source]), bulk_of(providers[destination])
        except UnknownStoreError:
            continue
        if not space or not ids or ends[0] is None or ends[1] is None:
            continue
        group = _BulkGroup(providers, manifest, (ends[0], ends[1]), (source, destination), space)
        done = group.done(ids, audit_sums(source, space, ids))
        results |= {Duplicate(source, destination, space, name): result for name, result in done.items()}
    return [results.get(task) for task in tasks]


def copy_group(
    providers: ConfiguredStores,
    manifest: Manifest,
    pair: Pair,
    space: str,
    infos: Mapping[str, ItemInfo | None],
    *,
    audit_sums: AuditSums,
) -> Mapping[str, TaskResult]:
    """As :func:`duplicate_group`, by id; of an item that only the source has, *infos* has what the source says of it.

    An item that is there by now all the same is left out.
    """
    ends = bulk_of(providers[pair.source]), bulk_of(providers[pair.destination])
    if not space or ends[0] is None or ends[1] is None:
        return {}
    group = _BulkGroup(providers, manifest, (ends[0], ends[1]), (pair.source, pair.destination), space)
    new = {name: info for name, info in infos.items() if info is not None}
    other = [name for name, info in infos.items() if info is None and name]
    results = dict[str, TaskResult]()
    if new:
        results |= group.copied(new, audit_sums(pair.source, space, list(new)))
    if other:
        results |= group.done(other, audit_sums(pair.source, space, other))
    return results


class _BulkGroup:
    """Items of one space of two stores that can do many at once."""

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        ends: tuple[Bulk, Bulk],
        stores: tuple[str, str],
        space: str,
    ) -> None:
        self._providers, self._manifest, self._space = providers, manifest, space
        self._from, self._to = ends
        self._source, self._destination = stores
        # The time of the copies: one whose item is deleted at the source before it is there is older than the deletion.
        self._began_at = providers.clock.now()

    def done(self, ids: Sequence[str], audited: Mapping[str, str | None]) -> Mapping[str, TaskResult]:
        """The result of each item that could be done together with others, and is what was *audited*, if it was."""
        found = self._providers.call(lambda: listed_infos(self._to, self._space, ids))
        copies = dict(zip(ids, found, strict=True))
        sizes = self._fetchable([name for name, copy in copies.items() if isinstance(copy, _ABSENT)])
        results = dict(self._compared({name: copy for name, copy in copies.items() if name not in sizes}, audited))
        needs_space = any(isinstance(copies[name], SpaceNotFoundError) for name in sizes)
        for some in _portions(sizes):
            copied = self._fetched({name: sizes[name] for name in some}, audited, needs_space=needs_space)
            needs_space = needs_space and not copied
            results |= copied
        return results

    def _compared(
        self, copies: Mapping[str, ItemInfo | StoreError], audited: Mapping[str, str | None]
    ) -> Mapping[str, TaskResult]:
        """As :meth:`done`, by the metadata of both ends; *copies* has those of the destination."""
        if not copies:
            return {}
        ids = list(copies)
        sources = dict(zip(ids, self._providers.call(lambda: self._from.infos(self._space, ids)), strict=True))
        if any(isinstance(one, ItemInfo) and one.checksum() for one in sources.values()):
            copies = self._in_space(copies)
        actions, new, same = {}, {}, {}
        for name, source in sources.items():
            copy = copies[name]
            if not isinstance(source, ItemInfo) or not isinstance(copy, (ItemInfo, ItemNotFoundError)):
                continue
            if is_unaudited(source.checksum(), audited.get(name)):
                continue
            actions[name] = action = decide_duplication(
                self._space, name, _side(source), _side(copy), SourceRecord.NONE
            )
            if action.act == DuplicationAct.NOTHING and isinstance(copy, ItemInfo):
                same[name] = copy
            elif action.act == DuplicationAct.COPY and not isinstance(copy, ItemInfo) and source.size <= SMALL:
                new[name] = source
        rows = self._manifest.get_many(self._destination, self._space, list(same)) if same else {}
        same = {name: info for name, info in same.items() if not _is_recorded_otherwise(rows.get(name), info)}
        now = self._providers.clock.now()
        events = {name: self._event(info, now) for name, info in same.items() if not _is_live(rows.get(name))}
        events |= self._copied(new)
        done = [*same, *(name for name in new if name in events)]
        return {name: _result(actions[name], events.get(name)) for name in done}

    def copied(self, infos: Mapping[str, ItemInfo], audited: Mapping[str, str | None]) -> Mapping[str, TaskResult]:
        """The result of each item of the source that was copied to where there was none, and is what was *audited*."""
        new = _copyable(infos, audited)
        if new and not self._providers.call(lambda: self._providers[self._destination].has_space(self._space)):
            self._providers.make_space(self._destination, self._space)
        return self._first_copies(new)

    def _fetchable(self, ids: Sequence[str]) -> Mapping[str, int]:
        """The recorded sizes of those items of the source whose metadata and bytes can be had in one go."""
        if not ids or fetches_at_once(self._from) is None:
            return {}
        rows = self._manifest.get_many(self._source, self._space, ids)
        return {
            name: row.size
            for name, row in rows.items()
            if not row.deleted and row.size is not None and row.size <= SMALL
        }

    def _fetched(
        self, sizes: Mapping[str, int], audited: Mapping[str, str | None], *, needs_space: bool
    ) -> Mapping[str, TaskResult]:
        """As :meth:`copied`; one that is larger than recorded in *sizes* is left to be done alone."""
        source = fetches_at_once(self._from)
        assert source is not None
        found = self._providers.call(lambda: source.fetch(self._space, sizes))
        items = {name: one for name, one in zip(sizes, found, strict=True) if isinstance(one, FetchedItem)}
        new = _copyable({name: one.info for name, one in items.items()}, audited)
        if new and needs_space:
            self._providers.make_space(self._destination, self._space)
        return self._first_copies(new, {name: items[name].data for name in new})

    def _first_copies(
        self, new: Mapping[str, ItemInfo], data: Mapping[str, bytes] | None = None
    ) -> Mapping[str, TaskResult]:
        """The results of those of *new* that were copied; *data* are their bytes, if they were read already."""
        if not new:
            return {}
        name, info = next(iter(new.items()))
        summary = _summary(decide_duplication(self._space, name, _side(info), _NOT_THERE, SourceRecord.NONE))
        return {name: TaskResult(summary, events=(event,)) for name, event in self._copied(new, data).items()}

    def _in_space(self, copies: Mapping[str, ItemInfo | StoreError]) -> Mapping[str, ItemInfo | StoreError]:
        """*copies*, which are wanted at the destination: if its space is missing, it is made (D23)."""
        if not any(isinstance(one, SpaceNotFoundError) for one in copies.values()):
            return copies
        self._providers.make_space(self._destination, self._space)
        found = self._providers.call(lambda: listed_infos(self._to, self._space, list(copies)))
        return dict(zip(copies, found, strict=True))

    def _copied(self, new: Mapping[str, ItemInfo], data: Mapping[str, bytes] | None = None) -> dict[str, ManifestEvent]:
        """The event of each of *new* that was copied, and is proven to be what the source's provider recorded.

        As many are held in memory at a time as :data:`HELD` allows.
        """
        events: dict[str, ManifestEvent] = {}
        for some in _portions({name: info.size for name, info in new.items()}):
            events |= self._copied_at_once({name: new[name] for name in some}, data)
        return events

    def _copied_at_once(
        self, new: Mapping[str, ItemInfo], data: Mapping[str, bytes] | None
    ) -> dict[str, ManifestEvent]:
        """They are held in memory, unless the destination reads the source's files itself. It hashes what it gets
        before any of it is in place, and refuses what is not as promised."""
        folder = folder_of(self._from) if data is None and takes_files(self._to) else None
        read: Sequence[bytes | StoreError]
        if data is not None:
            read = [data[name] for name in new]
        elif folder is None:
            read = self._providers.call(lambda: self._from.read(self._space, list(new)))
        else:
            read = [b""] * len(new)
        items = [
            NewItem(name, found, sha256, info.mimetype, clean_properties(info.properties), folder)
            for (name, info), found in zip(new.items(), read, strict=True)
            if isinstance(found, bytes) and (sha256 := info.checksum())
        ]
        stored = self._providers.call(lambda: self._to.put(self._space, items)) if items else []
        return {
            item.content_id: self._event(one, self._began_at)
            for item, one in zip(items, stored, strict=True)
            if isinstance(one, ItemInfo) and one.checksum() == item.sha256
        }

    def _event(self, info: ItemInfo, now: int) -> ManifestEvent:
        return ManifestEvent(
            store=self._destination,
            space=self._space,
            content_id=info.content_id,
            at=now,
            sha256=info.checksum(),
            size=info.size,
            mimetype=info.mimetype,
        )


def _copyable(infos: Mapping[str, ItemInfo], audited: Mapping[str, str | None]) -> Mapping[str, ItemInfo]:
    """Those of *infos* that are small, have a checksum of their provider, and are what was *audited*, if they were."""
    return {
        name: info
        for name, info in infos.items()
        if info.size <= SMALL and (sha256 := info.checksum()) and not is_unaudited(sha256, audited.get(name))
    }


def _is_live(row: ManifestRow | None) -> bool:
    return row is not None and not row.deleted


def _is_recorded_otherwise(row: ManifestRow | None, copy: ItemInfo) -> bool:
    """Whether the manifest has other bytes of the *copy* than its provider: such an item is done alone."""
    return row is not None and not row.deleted and row.sha256 != copy.checksum()


def _portions(sizes: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """The names of *sizes*, some at a time, of so many bytes together as may be held in memory."""
    some, held = list[str](), 0
    for name, size in sizes.items():
        if some and held + size > HELD:
            yield some
            some, held = [], 0
        some.append(name)
        held += size
    if some:
        yield some


def _side(found: ItemInfo | StoreError) -> ObservedEnd:
    if not isinstance(found, ItemInfo):
        return ObservedEnd(EndState.NO_ITEM)
    return ObservedEnd(EndState.ITEM, found.checksum(), found.properties)


def _result(action: DuplicationAction, event: ManifestEvent | None) -> TaskResult:
    return TaskResult(_summary(action), events=() if event is None else (event,))


def _summary(action: DuplicationAction) -> str:
    return f"{action.row} {action.act.value}: {action.reason}"
