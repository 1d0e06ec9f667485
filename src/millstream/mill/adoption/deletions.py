"""Handling of items that vanished from a source: their copies stay until the deletion is recorded, or a new name is
verified."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence

from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.catalog import SCANNED_COLUMNS, AdoptedItem
from millstream.mill.adoption.sources import LISTED_COLUMNS, item_of, listed_columns
from millstream.mill.column_join import join_columns
from millstream.mill.manifest import ManifestEvent
from millstream.mill.merge_join import groups
from millstream.stores.protocol import EntryKind

_GROUP = 1000
_NOT_LISTED = (EntryKind.UNREADABLE.value, EntryKind.NAME_TOO_LONG.value)


class Deletions(enum.StrEnum):
    """The rule for copies of items that vanish from the source."""

    HOLD = "hold"  # they are kept until people say that the deletion was meant
    FOLLOW = "follow"  # they are deleted, within the change guard


def forget_vanished(
    target: AdoptionTarget, space: str, *, only: Callable[[AdoptedItem], bool] = lambda _: True
) -> Sequence[str]:
    """Record that the items of *space* that vanished, and are still gone, were deleted; returns their ids.

    Their copies are then deleted by the next duplication, within the change guard. An item that was renamed is not
    among them: its copies may be the only ones until those under the new name are verified (:func:`forget_renamed`).
    Raises :class:`StoreError` where the source does not answer.
    """
    vanished = list(target.catalog.vanished(target.store, space))
    gone = {item.content_id for item in vanished}
    return _forget(
        target,
        space,
        [
            item
            for item in vanished
            if only(item)
            and (item.renamed_to is None or item.renamed_to in gone)
            and item_of(target.source, space, item.content_id) is None
        ],
    )


def forget_followed(target: AdoptionTarget, space: str) -> str:
    """Follow the deletions of empty folders, and if *space* is set so, all deletions except renames.

    Copies of renamed items are needed until those under the new names are verified. A file may have been renamed while
    the source was listed, so that neither name was: what was first missed by the last run is left to the next one if
    the source has an item of its size that was not adopted. If it lists nothing at all, or has a folder that cannot be
    listed, no deletion of a file is followed; returns that folder, or an empty text. Raises :class:`StoreError` where
    the source does not answer.
    """
    known = target.catalog.space(target.store, space)
    follow, begun_at = known.deletions == Deletions.FOLLOW, known.begun_at or 0
    sizes, unlisted = None, ""
    if follow and target.catalog.vanished(target.store, space, limit=1):
        sizes, unlisted = _unadopted_sizes(target, space)

    def is_followed(item: AdoptedItem) -> bool:
        if item.kind == EntryKind.FOLDER:
            return True
        was_missed_before = item.vanished_at is not None and item.vanished_at < begun_at
        return sizes is not None and (was_missed_before or item.size not in sizes)

    forget_vanished(target, space, only=is_followed)
    return unlisted


def _unadopted_sizes(target: AdoptionTarget, space: str) -> tuple[set[int] | None, str]:
    """The sizes (bytes) of what the source lists and was not adopted as it is listed; None if it lists nothing.

    None, too, with its id, if it has a folder that cannot be listed: items may have been renamed into it.
    """
    sizes, is_empty = set[int](), True
    listed, known = listed_columns(target.source, space), target.catalog.scan_columns(target.store, space)
    for run in join_columns(listed, known, LISTED_COLUMNS, SCANNED_COLUMNS):
        for name, (size, version, kind, was_size, was_version, was_kind, _, settled) in zip(
            run.keys, zip(*run.columns, strict=True), strict=True
        ):
            if kind is not None:
                is_empty = False
                if kind in _NOT_LISTED and (name.endswith("/") or not version):
                    return None, name
                if not settled or (size, version, kind) != (was_size, was_version, was_kind):
                    sizes.add(size)
    return None if is_empty else sizes, ""


def count_kept(target: AdoptionTarget, space: str, destination: str) -> int:
    """How many copies in *destination* are of items that are left out on purpose: they are kept."""
    names = [item.content_id for item in target.catalog.excluded(target.store, space)]
    rows = target.manifest.get_many(destination, space, names) if names else {}
    return sum(not row.deleted for row in rows.values())


def forget_renamed(target: AdoptionTarget, space: str, destinations: Collection[str]) -> Sequence[str]:
    """Record the deletion of each item that was renamed, once all *destinations* hold its bytes under the new name."""
    renamed = [item for item in target.catalog.vanished(target.store, space) if item.renamed_to is not None]
    return _forget(target, space, [item for item in renamed if _is_copied(target, item, destinations)])


def _is_copied(target: AdoptionTarget, item: AdoptedItem, destinations: Collection[str]) -> bool:
    """Whether every one of *destinations* has the bytes of *item*, read and found good, under its new name."""
    copies = {row.store: row for row in target.manifest.replicas(item.space, item.renamed_to or "")}
    return all(
        (row := copies.get(store)) is not None
        and not row.deleted
        and row.sha256 == item.sha256
        and row.verified_at is not None
        and row.outcome == "SUCCESS"
        for store in destinations
    )


def _forget(target: AdoptionTarget, space: str, items: Iterable[AdoptedItem]) -> list[str]:
    forgotten: list[str] = []
    for group in groups(items, _GROUP):
        names = [item.content_id for item in group]
        now = target.clock.now()
        rows = target.manifest.get_many(target.store, space, names)
        at = {name: max(now, row.modified) for name, row in rows.items()}
        target.manifest.writer.record(
            [ManifestEvent(target.store, space, name, at.get(name, now), deleted=True) for name in names]
        )
        target.catalog.remove(target.store, space, names)
        forgotten += names
    return forgotten
