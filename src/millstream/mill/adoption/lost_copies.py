"""Copies that a listing shows as lost or overwritten: they are named before they are copied again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.integrity.sweep import listed_or_known
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.integrity_outcomes import ROWS, CheckRow
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.reports.report import CopyFinding


def find_lost(providers: ConfiguredStores, manifest: Manifest, store: str, space: str) -> Iterator[CopyFinding]:
    """The copies in *store* that are recorded and not listed, or listed with another size than is recorded.

    No copy is read. Raises :class:`~millstream.stores.StoreError` where the store cannot be listed.
    """
    missing, overwritten = ROWS[CheckRow.MISSING], ROWS[CheckRow.CONTENT_DIFFERS]
    for content_id, entry, row in listed_or_known(providers, manifest, store, space):
        if row is None or row.deleted:
            continue
        if entry is None:
            yield CopyFinding(content_id, missing.kind, missing.detail)
        elif entry.size != row.size:
            detail = f"{overwritten.detail}: {entry.size:,} bytes are there, {row.size:,} are recorded"
            yield CopyFinding(content_id, overwritten.kind, detail)


def repaired(manifest: Manifest, store: str, space: str, lost: Sequence[CopyFinding]) -> list[CopyFinding]:
    """Those of *lost* whose copies in *store* were written again, and then read and found good."""
    rows = manifest.get_many(store, space, [one.content_id for one in lost])
    return [one for one in lost if (row := rows.get(one.content_id)) is not None and _is_good(row)]


def _is_good(row: ManifestRow) -> bool:
    is_read = row.verified_at is not None and row.verified_at >= row.modified
    return is_read and not row.deleted and not row.missing and row.outcome == CheckVerdict.SUCCESS
