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
from millstream.stores.bulk import SMALL, Bulk, NewItem, bulk_of, folder_of, listed_infos, takes_files
from millstream.stores.protocol import ItemInfo, ItemNotFoundError, SpaceNotFoundError, StoreError

HELD = 8 * SMALL
"""Bytes of items that one thread holds in memory."""

Looked = tuple[ItemInfo | StoreError, ItemInfo | StoreError]
"""The metadata of an item at the source and the destination."""


_NOT_THERE = ObservedEnd(EndState.NO_ITEM)

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
        _, self._destination = stores

    def done(self, ids: Sequence[str], audited: Mapping[str, str | None]) -> Mapping[str, TaskResult]:
        """The result of each item that could be done together with others, and is what was *audited*, if it was."""
        sources = self._providers.call(lambda: self._from.infos(self._space, ids))
        copies = self._copies(ids, wanted=any(isinstance(one, ItemInfo) and one.checksum() for one in sources))
        actions, new, same = {}, {}, {}
        for name, source, copy in zip(ids, sources, copies, strict=True):
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
        for some in _portions(new):
            events |= self._copied(some)
        done = [*same, *(name for name in new if name in events)]
        return {name: _result(actions[name], events.get(name)) for name in done}

    def copied(self, infos: Mapping[str, ItemInfo], audited: Mapping[str, str | None]) -> Mapping[str, TaskResult]:
        """The result of each item of the source that was copied to where there was none, and is what was *audited*."""
        new = {
            name: info
            for name, info in infos.items()
            if info.size <= SMALL and (sha256 := info.checksum()) and not is_unaudited(sha256, audited.get(name))
        }
        if not new:
            return {}
        if not self._providers.call(lambda: self._providers[self._destination].has_space(self._space)):
            self._providers.make_space(self._destination, self._space)
        name, info = next(iter(new.items()))
        action = decide_duplication(self._space, name, _side(info), _NOT_THERE, SourceRecord.NONE)
        events: dict[str, ManifestEvent] = {}
        for some in _portions(new):
            events |= self._copied(some)
        summary = _summary(action)
        return {name: TaskResult(summary, events=(event,)) for name, event in events.items()}

    def _copies(self, ids: Sequence[str], *, wanted: bool) -> Sequence[ItemInfo | StoreError]:
        """What the destination says of each item; where one of them is *wanted* there, its space is made (D23)."""
        call, space = self._providers.call, self._space
        found = call(lambda: listed_infos(self._to, space, ids))
        if not wanted or not any(isinstance(one, SpaceNotFoundError) for one in found):
            return found
        self._providers.make_space(self._destination, space)
        return call(lambda: listed_infos(self._to, space, ids))

    def _copied(self, new: Mapping[str, ItemInfo]) -> dict[str, ManifestEvent]:
        """The event of each of *new* that was copied, and is proven to be what the source's provider recorded.

        They are held in memory, unless the destination reads the source's files itself. It hashes what it gets before
        any of it is in place, and refuses what is not as promised.
        """
        folder = folder_of(self._from) if takes_files(self._to) else None
        if folder is None:
            read = self._providers.call(lambda: self._from.read(self._space, list(new)))
        else:
            read = [b""] * len(new)
        items = [
            NewItem(name, data, sha256, info.mimetype, clean_properties(info.properties), folder)
            for (name, info), data in zip(new.items(), read, strict=True)
            if isinstance(data, bytes) and (sha256 := info.checksum())
        ]
        stored = self._providers.call(lambda: self._to.put(self._space, items)) if items else []
        now = self._providers.clock.now()
        return {
            item.content_id: self._event(one, now)
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


def _is_live(row: ManifestRow | None) -> bool:
    return row is not None and not row.deleted


def _is_recorded_otherwise(row: ManifestRow | None, copy: ItemInfo) -> bool:
    """Whether the manifest has other bytes of the *copy* than its provider: such an item is done alone."""
    return row is not None and not row.deleted and row.sha256 != copy.checksum()


def _portions(infos: Mapping[str, ItemInfo]) -> Iterator[Mapping[str, ItemInfo]]:
    """*infos*, some at a time, of so many bytes together as may be held in memory."""
    some, size = dict[str, ItemInfo](), 0
    for name, info in infos.items():
        if some and size + info.size > HELD:
            yield some
            some, size = {}, 0
        some[name] = info
        size += info.size
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
