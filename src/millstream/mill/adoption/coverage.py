"""How well the items of an adopted space are covered by copies, in one pass over catalog and manifest."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import sqlalchemy as sa

from millstream.mill.adoption.catalog import AdoptionCatalog, ChecksumEvidence, is_listed, items_table
from millstream.mill.manifest_table import manifest_table
from millstream.mill.reports.report import AdoptedShare


class CopyCoverage(msgspec.Struct, frozen=True):
    """The copies of a space in one store, in items.

    ``verified`` copies were read, and hashed to what was adopted, since they were written; ``pending`` items have no
    copy there of the version that was adopted; the others are not in order. Times are in microseconds.
    """

    items: int
    verified: int
    pending: int
    oldest_verified: int | None
    newest_verified: int | None

    @property
    def damaged(self) -> int:
        """Copies that are missing, that differ, or that were not read yet."""
        return self.items - self.verified - self.pending


def copy_coverage(engine: sa.Engine, source: str, space: str, copy: str) -> CopyCoverage:
    """How the items adopted from *space* of *source* are covered by their copies in the store *copy*."""
    return _coverage(engine, items_table, is_listed(items_table), (source, space, copy))


def kept_coverage(engine: sa.Engine, source: str, space: str, copy: str) -> CopyCoverage:
    """The same of items that are left out since they were adopted: whatever copies of them there are, are kept."""
    return _coverage(engine, items_table, items_table.c.excluded_at.is_not(None), (source, space, copy))


def recorded_coverage(engine: sa.Engine, source: str, space: str, copy: str) -> CopyCoverage:
    """How the items that the manifest has of *space* of *source* are covered by their copies in the store *copy*."""
    recorded = manifest_table.alias("recorded")
    return _coverage(engine, recorded, recorded.c.deleted.is_(False), (source, space, copy))


def recorded_damage(engine: sa.Engine, store: str, space: str) -> int:
    """How many items of *space* in *store* were missing or damaged when they were last checked."""
    row = manifest_table.c
    is_bad = sa.or_(row.missing.is_(True), row.outcome.in_(("FAILURE", "ERROR")))
    query = sa.select(sa.func.count()).where(row.store == store, row.space == space, row.deleted.is_(False), is_bad)
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def _coverage(
    engine: sa.Engine, items: sa.FromClause, there: sa.ColumnElement[bool], names: tuple[str, str, str]
) -> CopyCoverage:
    source, space, copy = names
    item, row = items.c, manifest_table.c
    copied = sa.and_(row.deleted.is_(False), row.sha256 == item.sha256)
    good = sa.and_(copied, row.missing.is_(False), row.outcome == "SUCCESS", row.verified_at >= row.modified)
    count = sa.func.count
    joined = items.outerjoin(
        manifest_table, sa.and_(row.store == copy, row.space == space, row.content_id == item.content_id)
    )
    query = (
        sa.select(
            count(),
            count(sa.case((good, 1))),
            count(sa.case((sa.func.coalesce(copied, sa.false()).is_(False), 1))),
            sa.func.min(sa.case((good, row.verified_at))),
            sa.func.max(sa.case((good, row.verified_at))),
        )
        .select_from(joined)
        .where(item.store == source, item.space == space, there)
    )
    with engine.connect() as connection:
        return CopyCoverage(*connection.execute(query).one())


def adopted_share(catalog: AdoptionCatalog, store: str, space: str) -> AdoptedShare:
    """How much of a space in *store* has no checksum but the one that was computed when its source was adopted."""
    sources = [one.store for one in catalog.spaces() if one.space == space]
    if not sources:
        return AdoptedShare()
    row, item = manifest_table.c, items_table.c
    adopted = sa.select(1).where(
        item.store.in_(sources),
        item.space == row.space,
        item.content_id == row.content_id,
        item.sha256 == row.sha256,
        item.origin == ChecksumEvidence.COMPUTED.value,
    )
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(row.size), 0)).where(
        row.store == store, row.space == space, row.deleted.is_(False), adopted.exists()
    )
    with catalog.engine.connect() as connection:
        return AdoptedShare(*connection.execute(query).one())


def verification_times(engine: sa.Engine, store: str, space: str) -> Iterator[int | None]:
    """When each live copy of a space was last read and found good."""
    row = manifest_table.c
    query = sa.select(row.verified_at).where(row.store == store, row.space == space, row.deleted.is_(False))
    with engine.connect() as connection:
        yield from connection.scalars(query)
