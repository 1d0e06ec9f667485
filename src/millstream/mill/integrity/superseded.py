"""Findings that a long sweep made by the manifest it began with, and that the manifest no longer bears out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity_decision import ManifestAction, SourceAnswer
from millstream.mill.integrity_outcomes import CheckRow
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, Manifest, ManifestRow
from millstream.mill.merge_join import groups

_GROUP = 500


def recheck_superseded(
    findings: Iterable[CheckResult], manifest: Manifest, checker: BitChecker
) -> Iterator[CheckResult]:
    """A new result for each of *findings* whose item was changed, added or deleted since the sweep began, or checked
    after it.

    So an item that was deleted meanwhile is not reported as missing until the next sweep. An item with a change
    that waits in the audit outbox is checked again too: only *checker* knows of it, and sets it aside as too recent. So
    is one that would be recorded, and that the audit log or the rows of other stores have with other bytes; and so is
    every one in a store that other programs write: only *checker* knows what was adopted there. And so is a wrong
    checksum that is not the provider's own, but kept by us with the object.
    """
    for (store, space), some in groupby(findings, key=lambda found: (found.store, found.space)):
        for group in groups(some, _GROUP):
            names = [found.content_id for found in group]
            rows, pending = manifest.get_many(store, space, names), checker.pending(store, space, names)
            again = pending | _known_otherwise(store, space, group, checker)
            adopted = checker.is_read_only(store)
            differing = [found.content_id for found in group if found.row == CheckRow.STORE_DIFFERS]
            again |= {name for name in differing if checker.keeps_checksum(ItemRef(store, space, name))}
            for found in group:
                if adopted or found.content_id in again or is_superseded(found, rows.get(found.content_id)):
                    yield checker.check(ItemRef(store, space, found.content_id)).result


def _known_otherwise(store: str, space: str, findings: Iterable[CheckResult], checker: BitChecker) -> set[str]:
    """Which of *findings* would record a sum that another record of ours contradicts."""
    new = {one.content_id: one.provider or "" for one in findings if one.action == ManifestAction.CREATE}
    audit = checker.audit_sums(store, space, list(new)) if new else {}
    known = {name for name, sha256 in audit.items() if sha256 not in (None, SourceAnswer.NOT_KEPT, new[name])}
    return known | checker.contradicted(store, space, new.items())


def is_superseded(found: CheckResult, row: ManifestRow | None) -> bool:
    """Whether *found* is older than the last check in the *row* that the manifest has now, or speaks of another version
    of the item."""
    if row is None:
        return found.manifest is not None
    if row.checked_at is not None and row.checked_at > found.checked_at:
        return True
    return (row.deleted and found.row not in _OF_TOMBSTONES) or row.sha256 != found.manifest


_OF_TOMBSTONES = (CheckRow.DELETED, CheckRow.UNDELETED)
