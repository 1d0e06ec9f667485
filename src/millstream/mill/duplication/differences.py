"""How the items of a space differ between a source and a destination, in bounded memory."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from operator import le
from typing import NamedTuple, Protocol

import msgspec

from millstream.mill.column_join import ItemColumns, join_columns
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.source_recorder import is_unchanged, record_columns
from millstream.mill.manifest import Manifest
from millstream.mill.manifest_table import COMPARISON_COLUMNS, ComparisonRow
from millstream.mill.merge_join import groups, map_ahead
from millstream.mill.policies.policy import Pair
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import ItemInfo

EXAMPLES = 10
_ASKED = 1000
"""Items that the outbox is asked about together."""

_AHEAD = 3
"""Parts of a listing that are recorded while the next one is read."""


class ItemDifference(enum.StrEnum):
    """How an item differs between source and destination."""

    COPY = "copy"  # missing at the destination
    CHANGE = "change"  # it may have changed at the source
    SAME = "same"
    DELETE = "delete"  # only the destination has it, and its deletion is recorded
    HELD = "held"  # only the destination has it, and nothing says that it was deleted


class ListedItem(Protocol):
    """The listing of an item at one end."""

    @property
    def size(self) -> int: ...
    @property
    def modified(self) -> int | None: ...


class RecordedItem(Protocol):
    """The manifest record of an item at one end."""

    @property
    def sha256(self) -> str | None: ...
    @property
    def modified(self) -> int: ...
    @property
    def deleted(self) -> bool: ...


_COPIED = (ItemDifference.COPY, ItemDifference.CHANGE)


class ComparedItem(NamedTuple):
    """An item of a space, how it differs, its bytes at the source, and whether other bytes would be replaced."""

    name: str
    kind: ItemDifference
    size: int
    replaces: bool


class DuplicationPlan(msgspec.Struct, frozen=True):
    """The differences of one pair of stores and one space, in numbers of items.

    ``bytes`` are those of the items to copy and to compare. ``replaced`` of the changes would put other bytes in the
    place of what is at the destination, recorded or not; ``copied`` items are at the destination by now. ``held`` items
    are only there and have no tombstone, so nothing may be deleted (promise P8): record their deletion, or put them
    back at the source. ``held_examples`` names the first of them. ``hold`` is the number under which the whole plan
    waits for an approval (:mod:`millstream.mill.duplication.change_guard`); nothing of it was put on the queue then. In
    a dry run ``hold_reason`` says why the whole plan would be held.
    """

    pair: Pair
    space: str
    copies: int = 0
    changes: int = 0
    deletes: int = 0
    same: int = 0
    held: int = 0
    held_examples: tuple[str, ...] = ()
    bytes: int = 0
    replaced: int = 0
    copied: int = 0
    hold: int | None = None
    hold_reason: str | None = None

    @property
    def tasks(self) -> int:
        """Tasks that were put on the queue, or in a dry run would have been."""
        return self.copies + self.changes + self.deletes


def differences(
    providers: ConfiguredStores,
    manifest: Manifest,
    pair: Pair,
    space: str,
    *,
    after: str = "",
    same: bool = True,
    outbox: AuditOutbox | None = None,
) -> Iterator[ComparedItem]:
    """Every item that either store of *pair* lists in *space*, with an id above *after*, in order.

    Two items are the same where their sizes agree and the manifest has one checksum for both that is no older than the
    source's last change. With *same* False they are left out. A deletion that waits in *outbox* counts as recorded.
    """
    now = providers.clock.now()
    for run in _joined(providers, manifest, pair, space, after):
        if not _is_same(run):
            yield from (
                one
                for one in _found(run, now, _deletions(outbox, pair.source, space, run))
                if same or one.kind != ItemDifference.SAME
            )
        elif same:
            yield from (
                ComparedItem(name, ItemDifference.SAME, size, False)
                for name, size in zip(run.keys, run.columns[0], strict=True)
            )


def count_differences(
    providers: ConfiguredStores,
    manifest: Manifest,
    pair: Pair,
    space: str,
    *,
    everything: bool = False,
    record: bool = False,
    outbox: AuditOutbox | None = None,
    skip: Container[str] = (),
    on_copy: Callable[[ComparedItem], object] | None = None,
    on_new: Callable[[Sequence[str]], object] | None = None,
    on_info: Callable[[ItemInfo], object] | None = None,
    on_loss: Callable[[ComparedItem], object] | None = None,
) -> DuplicationPlan:
    """Count how *space* differs between the stores of *pair*; with *everything* what is the same counts as a change.

    With *record* the manifest is brought up to date with the source on the way
    (:mod:`millstream.mill.duplication.source_recorder`). A deletion that waits in *outbox* counts as recorded. Items of
    *skip* are left out. *on_copy* is told of each item that is to be copied or compared again, *on_new* instead of
    many that only the source lists, *on_info* what the source's provider says of what is recorded, *on_loss* of each
    item whose copy would be deleted or replaced, or has no original.
    """
    now = providers.clock.now()

    def recorded(run: ItemColumns) -> ItemColumns:
        if not record or _is_same(run):
            return run
        return _recorded(providers, manifest, pair.source, space, run, now=now, on_info=on_info)

    counter = _DifferenceCounter(everything=everything)
    for run in map_ahead(recorded, _joined(providers, manifest, pair, space, ""), _AHEAD if record else 0):
        if _is_same(run):
            counter.add_same(run)
            continue
        if on_new is not None and not skip and _is_new(run):
            counter.add_new(run)
            on_new(run.keys)
            continue
        for item in _found(run, now, _deletions(outbox, pair.source, space, run)):
            if item.name in skip:
                continue
            counter.add(item)
            if on_loss is not None and (item.replaces or item.kind in (ItemDifference.DELETE, ItemDifference.HELD)):
                on_loss(item)
            if on_copy is not None and item.kind in _COPIED:
                on_copy(item)
    return counter.plan(pair, space)


class _DifferenceCounter:
    """Adds up the differences of a space; with *everything*, items that are the same count as changes."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._counts: Counter[ItemDifference] = Counter()
        self._held_examples: list[str] = []
        self._bytes = self._replaced = 0

    def add_same(self, run: ItemColumns) -> None:
        """Add *run*, in which all items are the same."""
        self._counts[ItemDifference.SAME] += len(run.keys)
        self._bytes += sum(run.columns[0]) if self._everything else 0

    def add_new(self, run: ItemColumns) -> None:
        """Add *run*, of which only the source lists each item."""
        self._counts[ItemDifference.COPY] += len(run.keys)
        self._bytes += sum(run.columns[0])

    def add(self, item: ComparedItem) -> None:
        self._counts[item.kind] += 1
        self._replaced += item.replaces
        if item.kind in _COPIED or (self._everything and item.kind == ItemDifference.SAME):
            self._bytes += item.size
        elif item.kind == ItemDifference.HELD and len(self._held_examples) < EXAMPLES:
            self._held_examples.append(item.name)

    def plan(self, pair: Pair, space: str) -> DuplicationPlan:
        """The differences of *space* between the stores of *pair*."""
        counts, everything = self._counts, self._everything
        return DuplicationPlan(
            pair,
            space,
            copies=counts[ItemDifference.COPY],
            changes=counts[ItemDifference.CHANGE] + (counts[ItemDifference.SAME] if everything else 0),
            deletes=counts[ItemDifference.DELETE],
            same=0 if everything else counts[ItemDifference.SAME],
            held=counts[ItemDifference.HELD],
            held_examples=tuple(self._held_examples),
            bytes=self._bytes,
            replaced=self._replaced,
            copied=counts.total() - counts[ItemDifference.COPY],
        )


def _joined(
    providers: ConfiguredStores, manifest: Manifest, pair: Pair, space: str, after: str
) -> Iterator[ItemColumns]:
    """What both ends list and what the manifest has of each, with the columns of :func:`_is_same`."""
    source, destination = pair.source, pair.destination
    listed, recorded = 2, len(COMPARISON_COLUMNS) - 1
    return join_columns(
        join_columns(
            providers.runs(source, space, after=after), providers.runs(destination, space, after=after), listed, listed
        ),
        join_columns(
            manifest.scan_columns(source, space, after=after), manifest.scan_columns(destination, space, after=after),
            recorded, recorded,
        ),
        2 * listed, 2 * recorded,
    )  # fmt: skip


def _recorded(
    providers: ConfiguredStores,
    manifest: Manifest,
    source: str,
    space: str,
    run: ItemColumns,
    *,
    now: int,
    on_info: Callable[[ItemInfo], object] | None,
) -> ItemColumns:
    """*run* with the rows of the source as they are once it is recorded."""
    columns, end = run.columns, 4 + len(COMPARISON_COLUMNS) - 1
    known = ItemColumns(run.keys, columns[:2] + columns[4:end])
    if not record_columns(providers, manifest, source, space, known, now=now, on_info=on_info).recorded:
        return run
    rows = manifest.get_columns(source, space, run.keys)
    return ItemColumns(run.keys, (*columns[:4], *rows.at(run.keys), *columns[end:]))


def _is_same(run: ItemColumns) -> bool:
    """Whether every item of *run* is plainly the same at both ends; what is not may be so all the same.

    An item that is not as long as it was recorded is not: it is to be recorded first.
    """
    sizes, times, copied_sizes, _, sums, recorded_sizes, recorded, gone, copied_sums, _, _, copied_gone = run.columns
    if not sizes == copied_sizes == recorded_sizes or sums != copied_sums or None in sums or None in times:
        return False
    return not any(gone) and not any(copied_gone) and all(map(le, times, recorded))


def _is_new(run: ItemColumns) -> bool:
    """Whether the source lists every item of *run*, and the destination none."""
    return None not in run.columns[0] and run.columns[2].count(None) == len(run.keys)


def _deletions(outbox: AuditOutbox | None, source: str, space: str, run: ItemColumns) -> dict[str, int]:
    """When those items of *run* that only the destination has were deleted, by what waits in *outbox*."""
    if outbox is None:
        return {}
    sizes, copied_sizes, gone = run.columns[0], run.columns[2], run.columns[7]
    listed = zip(run.keys, sizes, copied_sizes, gone, strict=True)
    absent = (
        name for name, size, copied_size, deleted in listed if size is None and copied_size is not None and not deleted
    )
    deleted: dict[str, int] = {}
    for names in groups(absent, _ASKED):
        deleted |= outbox.deletions(source, space, names)
    return deleted


def _found(run: ItemColumns, now: int, deletions: Mapping[str, int]) -> Iterator[ComparedItem]:
    """Each item of *run* that either end lists, compared by itself; *deletions* are those that wait in the outbox."""
    for name, size, time, copied_size, copied_time, *rows in zip(run.keys, *run.columns, strict=True):
        source = None if size is None else _ListedItem(size, time)
        copy = None if copied_size is None else _ListedItem(copied_size, copied_time)
        if source is not None or copy is not None:
            row, copied = (None if one[2] is None else ComparisonRow(name, *one) for one in (rows[:4], rows[4:]))
            kind, replaces = compare(source, copy, row, copied, now, deleted_at=deletions.get(name))
            yield ComparedItem(name, kind, size or 0, replaces)


class _ListedItem(NamedTuple):
    size: int
    modified: int | None


def deletion_time(row: RecordedItem | None, deleted_at: int | None) -> int | None:
    """When an item was deleted, as recorded: by its *row*, or by what waits in the audit outbox, of *deleted_at*.

    None where no deletion is recorded. One before the last change in the row says nothing of what was added later.
    """
    if row is None:
        return deleted_at
    if row.deleted:
        return row.modified
    return deleted_at if deleted_at is not None and deleted_at >= row.modified else None


def is_deleted(row: RecordedItem | None, deleted_at: int | None, copied: RecordedItem | None) -> bool:
    """Whether an item's deletion is recorded (:func:`deletion_time`), and may be one of what is at the destination.

    It says nothing of what *copied* has there since a later time, nor of what is there although *copied* is deleted,
    whatever its bytes: others may have added it, as where a policy was reversed.
    """
    at = deletion_time(row, deleted_at)
    return at is not None and (copied is None or (not copied.deleted and copied.modified <= at))


def compare(
    source: ListedItem | None,
    copy: ListedItem | None,
    row: RecordedItem | None,
    copied: RecordedItem | None,
    now: int | None = None,
    *,
    deleted_at: int | None = None,
) -> tuple[ItemDifference, bool]:
    """How an item that at least one end lists differs, and whether other bytes at the destination would be replaced.

    *source* and *copy* are what the two ends list, *row* and *copied* what the manifest has of them. A change that is
    to come after *now* (microseconds) is none: see :func:`is_unchanged`. *deleted_at* is the time of a deletion at the
    source that waits in the audit outbox.
    """
    if source is None:
        return (ItemDifference.DELETE if is_deleted(row, deleted_at, copied) else ItemDifference.HELD), False
    if copy is None:
        return ItemDifference.COPY, False
    if row is None or copied is None or row.deleted or copied.deleted:
        return ItemDifference.CHANGE, source.size != copy.size  # of one size it is not known: the task counts it
    unchanged = is_unchanged(source.modified, row.modified, now)
    alike = row.sha256 is not None and row.sha256 == copied.sha256
    if unchanged and alike and source.size == copy.size:
        return ItemDifference.SAME, False
    return ItemDifference.CHANGE, not (alike and unchanged)
