"""The integrity sweep of one space without Spark: list, compare with the manifest, read every byte.

While a group of items is compared, the next is being read, and the one before written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.column_join import ItemColumns, join_columns
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker, CheckedGroup, CheckedItem, ItemReading
from millstream.mill.integrity.intact_items import ItemsToCheck, expected_sums, find_intact
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.manifest_table import COMPARISON_COLUMNS
from millstream.mill.merge_join import one_behind, outer_join
from millstream.mill.reports.report import SpaceTally
from millstream.stores.protocol import Entry, StoreError

GROUP = 1000
"""Items checked, and written to the manifest, together."""

_TOGETHER = 250
"""Items that one thread looks at and reads together."""

OnChecked = Callable[[CheckedGroup], None]
"""Called with each group of finished checks, for progress, reports and follow-up tasks."""


def check_space(
    providers: ConfiguredStores,
    manifest: Manifest,
    store: str,
    space: str,
    *,
    threads: int = 4,
    on_checked: OnChecked | None = None,
    checker: BitChecker | None = None,
    writer: CheckWriter | None = None,
) -> SpaceTally:
    """Check every item that the store lists or our records know, and write the outcomes down.

    *checker* and *writer* are by default such as know only the manifest. Returns the tally, complete only if the
    listing went through to its end. Raises :class:`UnknownStoreError`.
    """
    checker, tally = checker or BitChecker(providers, manifest), SpaceTally()
    write = (writer or CheckWriter(manifest)).write_group
    items = items_to_check(providers, manifest, store, space, checker.audit_lookup)
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="mill-check") as pool,
        ThreadPoolExecutor(1, thread_name_prefix="mill-check-writer") as recorder,
    ):
        try:
            looked_at = (_look_at(pool, checker, store, space, some) for some in _in_groups(items, GROUP))
            checked = (_check_group(pool, checker, store, space, group) for group in one_behind(looked_at))
            written = ((some, recorder.submit(write, some)) for some in checked)
            for some, writing in one_behind(written):
                writing.result()
                tally.add_intact(some.intact)
                tally.add([one.result for one in some.others])
                if on_checked is not None:
                    on_checked(some)
        except StoreError as error:
            tally.fail(f"the listing stopped before its end: {error}")
    return tally


class _Group(NamedTuple):
    """Items to check (but for what is seen of them), and what threads are seeing of them, as far as that can be done
    together."""

    items: ItemsToCheck
    parts: Sequence[Future[Sequence[int | ItemReading | None]]]


def _look_at(pool: ThreadPoolExecutor, checker: BitChecker, store: str, space: str, items: ItemColumns) -> _Group:
    sums, sizes, times, deleted, _, logged = items.columns
    expected = expected_sums(sums, deleted, logged if checker.is_audited(store) else sums)
    parts = [
        pool.submit(checker.observe_many, store, space, items.keys[part], expected[part], sizes[part])
        for part in (slice(start, start + _TOGETHER) for start in range(0, len(items.keys), _TOGETHER))
    ]
    return _Group(ItemsToCheck(items.keys, sums, sizes, times, deleted, expected, ()), parts)


def _check_group(pool: ThreadPoolExecutor, checker: BitChecker, store: str, space: str, group: _Group) -> CheckedGroup:
    """Check the items of *group*; those that could not be looked at together, one by one."""
    items = group.items._replace(seen=list(chain.from_iterable(part.result() for part in group.parts)))
    intact, others = find_intact(checker, store, space, items)
    if not others:
        return CheckedGroup(intact, ())
    audit = checker.audit_sums(store, space, [items.content_ids[place] for place in others])

    def check(place: int) -> CheckedItem:
        name, seen = items.content_ids[place], items.reading(place)
        return checker.sweep(ItemRef(store, space, name), items.row(place), audit[name], seen=seen)

    alone = pool.map(check, [place for place in others if items.reading(place) is None])
    return CheckedGroup(intact, [check(place) if items.reading(place) is not None else next(alone) for place in others])


class ItemToCheck(NamedTuple):
    """An item that is listed, or should be: its entry in the listing and its row in the manifest, where there are."""

    content_id: str
    entry: Entry | None
    row: ManifestRow | None


def items_to_check(
    providers: ConfiguredStores, manifest: Manifest, store: str, space: str, audit_lookup: AuditLookup | None = None
) -> Iterator[ItemColumns]:
    """What there is to check: all that is listed, and all that our own records say should be; in order.

    As :func:`listed_or_known`, in columns: those of :data:`COMPARISON_COLUMNS` but the id, None without a row; and two
    of the audit log, None where the item is not there by its last event: the id, and the checksum.
    """
    listed = (ItemColumns(run.keys, (run.keys,)) for run in providers.id_runs(store, space))
    logged = iter(()) if audit_lookup is None else audit_lookup.scan_sums(store, space)
    events = (ItemColumns(run.keys, (run.keys, *run.columns)) for run in logged)
    rows = join_columns(manifest.scan_columns(store, space), events, _ROW_WIDTH, 2)
    for run in join_columns(listed, rows, 1, _WIDTH):
        there, *known = run.columns
        deleted, event = known[_DELETED], known[_ROW_WIDTH]
        unlisted = [place for place, name in enumerate(there) if name is None]
        # a tombstone says that the item is gone, and an event without a row that the row was lost
        gone = {run.keys[place] for place in unlisted if deleted[place] or (deleted[place] is event[place] is None)}
        yield ItemColumns(run.keys, tuple(known)).without(gone)


_ROW_WIDTH = len(COMPARISON_COLUMNS) - 1
_WIDTH = _ROW_WIDTH + 2
_DELETED = COMPARISON_COLUMNS.index("deleted") - 1


def _in_groups(runs: Iterable[ItemColumns], size: int) -> Iterator[ItemColumns]:
    """*runs* in groups of *size* items, the last one of fewer."""
    keys, columns = list[str](), tuple(list[Any]() for _ in range(_WIDTH))
    for run in runs:
        keys += run.keys
        for column, more in zip(columns, run.columns, strict=True):
            column.extend(more)
        while len(keys) >= size:
            whole = ItemColumns(keys, columns)
            yield whole.head(size)
            rest = whole.tail(size)
            keys, columns = list(rest.keys), tuple(list(column) for column in rest.columns)
    if keys:
        yield ItemColumns(keys, columns)


def listed_or_known(
    providers: ConfiguredStores,
    manifest: Manifest,
    store: str,
    space: str,
    audit_lookup: AuditLookup | None = None,
    *,
    after: str = "",
) -> Iterator[ItemToCheck]:
    """All that is listed above *after*, and all that manifest or audit say should be, with listing entry and row."""
    listed, known = providers.entries(store, space, after=after), manifest.scan(store, space, after=after)
    unrecorded = () if audit_lookup is None else audit_lookup.unrecorded(store, space, after=after)
    for content_id, found, lost in outer_join(outer_join(listed, known), unrecorded):
        entry, row = (found.left, found.right) if found is not None else (None, None)
        if entry is not None or lost is not None or (row is not None and not row.deleted):
            yield ItemToCheck(content_id, entry, row)


def is_lately_verified(entry: Entry | None, row: ManifestRow | None, since: int, until: int) -> bool:
    """Whether the last check of a listed item found its bytes good between *since* and *until* (microseconds).

    Nothing that the listing shows may speak against them: they have the size that is recorded, and were not changed
    after the check. A check that is dated later than *until*, the present, is of a clock that was wrong.
    """
    if entry is None or row is None or row.deleted or row.outcome != CheckVerdict.SUCCESS or row.verified_at is None:
        return False
    unchanged = entry.modified is None or entry.modified <= row.verified_at
    dated = since <= row.verified_at <= until and row.verified_at == row.checked_at
    return dated and entry.size == row.size and unchanged
