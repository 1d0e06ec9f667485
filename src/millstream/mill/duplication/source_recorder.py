"""Bringing the manifest up to date with a source: what was added or changed there since it was last recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import le

import msgspec

from millstream.mill.column_join import ItemColumns, join_columns
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.manifest_table import COMPARISON_COLUMNS, ComparisonRow
from millstream.mill.merge_join import groups
from millstream.stores.audit import AuditedStore
from millstream.stores.protocol import ItemInfo


class RecordingCounts(msgspec.Struct, frozen=True):
    """The totals of a listing: all items, those newly recorded, and those that have no provider checksum to record."""

    listed: int
    recorded: int
    without_checksum: int


def record_space(providers: ConfiguredStores, manifest: Manifest, store: str, space: str) -> RecordingCounts:
    """Record every item of a space that the manifest does not know in its present version.

    The checksum is the one that the provider recorded when the bytes arrived, never one of the bytes as they are now:
    rot must not become the record. An item without one is counted and left out. Nothing is taken for deleted because
    it is not listed: a tombstone comes from the program that deletes (promise P8). No item is recorded as of later than
    now, whatever its provider's clock says: a deletion that is recorded afterwards would be older, and get lost.
    An item with a tombstone that is there is back, even if it is older than the tombstone.
    In an audited store no recorded checksum is replaced: its audit does that, and misses what was done behind it.
    """
    listed = recorded = without = 0
    now = providers.clock.now()  # before the listing: who deletes what is listed here does so later
    for run in join_columns(
        providers.runs(store, space), manifest.scan_columns(store, space), 2, len(COMPARISON_COLUMNS) - 1
    ):
        found = record_columns(providers, manifest, store, space, run, now=now)
        listed, recorded, without = (
            listed + found.listed, recorded + found.recorded, without + found.without_checksum
        )  # fmt: skip
    return RecordingCounts(listed, recorded, without)


def record_columns(
    providers: ConfiguredStores,
    manifest: Manifest,
    store: str,
    space: str,
    run: ItemColumns,
    *,
    now: int,
    on_info: Callable[[ItemInfo], object] | None = None,
) -> RecordingCounts:
    """As :func:`record_space`, of a part of the listing: the columns of *run* are those of the listing and of the rows.

    *now* (microseconds) is a time before it was listed. *on_info* is told what the provider says of what is recorded.
    """
    recorded = without = 0
    for new in groups(() if _is_known(run) else _unknown(run, now), 1000):
        infos = providers.find_many(store, space, [name for name, _ in new])
        found = [_event(store, space, info, row, now) for (_, row), info in zip(new, infos, strict=True)]
        if isinstance(providers[store], AuditedStore):
            found = [None if _is_rewritten(event, row) else event for (_, row), event in zip(new, found, strict=True)]
        events = [event for event in found if event is not None and event.sha256]
        times = {name: row.modified for name, row in new if row is not None}
        if on_info is not None:
            for info in infos:
                if info is not None:
                    on_info(info)
        manifest.writer.record(events)
        recorded += sum(event.at >= times.get(event.content_id, event.at) for event in events)  # others are ignored
        without += len([event for event in found if event is not None]) - len(events)
    return RecordingCounts(len(run.keys) - run.columns[0].count(None), recorded, without)


def _is_known(run: ItemColumns) -> bool:
    """Whether every item of *run* is plainly recorded as it is listed; what is not may be so all the same."""
    sizes, times, _, recorded_sizes, recorded, gone = run.columns
    if sizes != recorded_sizes or None in sizes or None in times:
        return False
    return not any(gone) and all(map(le, times, recorded))


def _unknown(run: ItemColumns, now: int) -> Iterator[tuple[str, ComparisonRow | None]]:
    """Each listed id of *run* whose row, if it has one, is not of this version of the item."""
    for name, size, time, *values in zip(run.keys, *run.columns, strict=True):
        row = None if values[2] is None else ComparisonRow(name, *values)
        known = row is not None and not row.deleted and row.size == size and is_unchanged(time, row.modified, now)
        if size is not None and not known:
            yield name, row


def _event(store: str, space: str, info: ItemInfo | None, row: ComparisonRow | None, now: int) -> ManifestEvent | None:
    if info is None:
        return None
    at = now if info.modified is None else min(info.modified, now)
    if row is not None and row.deleted:  # it was seen after the tombstone was read, which must not delete its copies
        at = max(at, row.modified)
    same = row is not None and not row.deleted and row.sha256 == info.checksum()
    size = row.size if same and row is not None else info.size  # the size of damaged bytes is not a record
    return ManifestEvent(
        store=store,
        space=space,
        content_id=info.content_id,
        at=at,
        sha256=info.checksum(),
        size=size,
        mimetype=info.mimetype,
    )


def _is_rewritten(event: ManifestEvent | None, row: ComparisonRow | None) -> bool:
    """Whether it puts another checksum in the place of a recorded one: at an audited store its audit does that."""
    return event is not None and row is not None and not row.deleted and row.sha256 not in (None, event.sha256)


def is_unchanged(modified: int | None, recorded: int, now: int | None = None) -> bool:
    """Whether a listed time of change tells of no change since what is *recorded* (all in microseconds).

    One that lies after *now* comes from a clock that is ahead, and tells nothing.
    """
    return modified is None or modified <= recorded or (now is not None and modified > now)
