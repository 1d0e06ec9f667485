"""Findings that a long sweep made by the manifest it began with, and that the manifest no longer bears out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from millstream.mill.integrity.checker import BitChecker
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, Manifest, ManifestRow
from millstream.mill.merge_join import groups

_GROUP = 500


def recheck_superseded(
    findings: Iterable[CheckResult], manifest: Manifest, checker: BitChecker
) -> Iterator[CheckResult]:
    """A new result for each of *findings* whose item was changed, added or deleted since the sweep began.

    So an item that somebody deleted meanwhile is not reported as missing until the next sweep. An item with a change
    that waits in the audit outbox is checked again too: only *checker* knows of it, and sets it aside as too recent.
    """
    for (store, space), some in groupby(findings, key=lambda found: (found.store, found.space)):
        for group in groups(some, _GROUP):
            names = [found.content_id for found in group]
            rows, pending = manifest.get_many(store, space, names), checker.pending(store, space, names)
            for found in group:
                if found.content_id in pending or is_superseded(found, rows.get(found.content_id)):
                    yield checker.check(ItemRef(store, space, found.content_id)).result


def is_superseded(found: CheckResult, row: ManifestRow | None) -> bool:
    """Whether *found* speaks of another version of the item than the *row* that the manifest has now."""
    if row is None:
        return found.manifest is not None
    return (row.deleted and found.row not in _OF_TOMBSTONES) or row.sha256 != found.manifest


_OF_TOMBSTONES = ("B21", "B24")
