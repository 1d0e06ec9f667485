"""How well the items of an adopted space are covered by copies, in one pass over catalog and manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.sql_rows import total
from millstream.mill.adoption.catalog import (
    AdoptionCatalog,
    ChecksumEvidence,
    first_of_each_space,
    is_listed,
    items_table,
)
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest_table import manifest_table
from millstream.mill.reports.report import AdoptedShare, CopyFinding

NOT_COPIED = "not copied"
"""The kind of an item that has no copy of its recorded version in a store."""


class CopyCoverage(msgspec.Struct, frozen=True):
    """The copies of a space in one store, in items.

    ``verified`` copies were read, and hashed to what was adopted, since they were written; ``pending`` items have no
    copy there of the version that was adopted; the others are not in order. Times are in microseconds;
    ``oldest_pending`` is when the first of the pending items was recorded, None where that is not known. ``new`` copies
    were never checked.
    """

    items: int
    verified: int
    pending: int
    oldest_verified: int | None
    newest_verified: int | None
    oldest_pending: int | None
    new: int

    @property
    def damaged(self) -> int:
        """Copies that are missing, that differ, or that were not read yet."""
        return self.items - self.verified - self.pending


NO_COPIES = CopyCoverage(0, 0, 0, None, None, None, 0)
"""The coverage of a space without items."""


def copy_coverage(engine: sa.Engine, source: str, spaces: Sequence[str], copy: str) -> Mapping[str, CopyCoverage]:
    """How the items adopted from each of *spaces* of *source* that has any are covered by their copies in the store
    *copy*: one statement for all."""
    return _coverage(engine, items_table, is_listed(items_table), (source, copy), spaces)


def kept_coverage(engine: sa.Engine, source: str, spaces: Sequence[str], copy: str) -> Mapping[str, CopyCoverage]:
    """The same of items that are left out since they were adopted: whatever copies of them there are, are kept."""
    return _coverage(engine, items_table, items_table.c.excluded_at.is_not(None), (source, copy), spaces)


def recorded_coverage(engine: sa.Engine, source: str, spaces: Sequence[str], copy: str) -> Mapping[str, CopyCoverage]:
    """The same of items that the manifest has of *spaces* of *source*."""
    recorded = manifest_table.alias("recorded")
    return _coverage(engine, recorded, recorded.c.deleted.is_(False), (source, copy), spaces)


def recorded_damage(engine: sa.Engine, store: str, spaces: Sequence[str]) -> Mapping[str, int]:
    """How many items of each of *spaces* in *store* were missing or damaged when they were last checked, if any."""
    row = manifest_table.c
    query = sa.select(row.space, sa.func.count()).where(*_damaged_rows(store, spaces)).group_by(row.space)
    with engine.connect() as connection:
        return {space: int(items) for space, items in connection.execute(query)}


def name_recorded_damage(
    engine: sa.Engine, store: str, spaces: Sequence[str], limit: int
) -> Mapping[str, list[CopyFinding]]:
    """The first *limit* items of each of *spaces* that :func:`recorded_damage` counts."""
    row = manifest_table.c
    query = sa.select(row.space, row.content_id, row.outcome, row.detail).where(*_damaged_rows(store, spaces))
    found: dict[str, list[CopyFinding]] = {}
    with engine.connect() as connection:
        for space, *damage in connection.execute(first_of_each_space(query, row, limit)):
            found.setdefault(space, []).append(_damage(*damage))
    return found


def name_uncovered(
    engine: sa.Engine, source: str, spaces: Sequence[str], copy: str, *, is_adopted: bool, limit: int
) -> Mapping[str, list[CopyFinding]]:
    """Of each of *spaces*, the first *limit* copies in the store *copy* that are not in order, and the first *limit*
    items without one."""
    recorded = manifest_table.alias("recorded")
    items: sa.FromClause = items_table if is_adopted else recorded
    there = items_table.c.vanished_at.is_(None) if is_adopted else recorded.c.deleted.is_(False)
    joined, copied, good = _join_copies(items, copy)
    item, row = items.c, manifest_table.c
    query = sa.select(item.space, item.content_id, row.outcome, row.detail).select_from(joined)
    query = query.where(item.store == source, item.space.in_(spaces), there)
    is_pending: sa.ColumnElement[bool] = sa.func.coalesce(copied, sa.false()).is_(False)
    if is_adopted:
        is_pending = sa.and_(is_pending, is_listed(items_table))
    damaged = query.where(copied, sa.func.coalesce(good, sa.false()).is_(False))
    found: dict[str, list[CopyFinding]] = {}
    with engine.connect() as connection:
        for space, *damage in connection.execute(first_of_each_space(damaged, item, limit)):
            found.setdefault(space, []).append(_damage(*damage))
        for space, content_id, *_ in connection.execute(first_of_each_space(query.where(is_pending), item, limit)):
            text = "this store has no copy of the recorded version"
            found.setdefault(space, []).append(CopyFinding(content_id, NOT_COPIED, text))
    return found


def _damage(content_id: str, outcome: str | None, detail: str | None) -> CopyFinding:
    """The result of the last check of a copy."""
    if outcome in (None, CheckVerdict.SUCCESS) or not detail:
        return CopyFinding(content_id, "not read", "it was not read since it was written")
    name, _, text = detail.partition(": ")
    return CopyFinding(content_id, name.partition(" ")[2], text)


def _damaged_rows(store: str, spaces: Sequence[str]) -> tuple[sa.ColumnElement[bool], ...]:
    row = manifest_table.c
    is_bad = sa.or_(row.missing.is_(True), row.outcome.in_(("FAILURE", "ERROR")))
    return row.store == store, row.space.in_(spaces), row.deleted.is_(False), is_bad


def _join_copies(
    items: sa.FromClause, copy: str
) -> tuple[sa.FromClause, sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """*items* with the rows of their copies in the store *copy*; whether one is of the version, and whether it is
    verified. Both are NULL where there is no row."""
    item, row = items.c, manifest_table.c
    copied = sa.and_(row.deleted.is_(False), row.sha256 == item.sha256)
    good = sa.and_(copied, row.missing.is_(False), row.outcome == "SUCCESS", row.verified_at >= row.modified)
    joined = items.outerjoin(
        manifest_table, sa.and_(row.store == copy, row.space == item.space, row.content_id == item.content_id)
    )
    return joined, copied, good


def _coverage(
    engine: sa.Engine,
    items: sa.FromClause,
    there: sa.ColumnElement[bool],
    stores: tuple[str, str],
    spaces: Sequence[str],
) -> Mapping[str, CopyCoverage]:
    source, copy = stores
    item, row, count = items.c, manifest_table.c, sa.func.count
    joined, copied, good = _join_copies(items, copy)
    is_pending = sa.func.coalesce(copied, sa.false()).is_(False)
    recorded_at: sa.ColumnElement[Any] = sa.null() if items is items_table else item.modified
    query = (
        sa.select(
            item.space,
            count(),
            count(sa.case((good, 1))),
            count(sa.case((is_pending, 1))),
            sa.func.min(sa.case((good, row.verified_at))),
            sa.func.max(sa.case((good, row.verified_at))),
            sa.func.min(sa.case((is_pending, recorded_at))),
            count(sa.case((sa.and_(copied, row.missing.is_(False), row.outcome.is_(None)), 1))),
        )
        .select_from(joined)
        .where(item.store == source, item.space.in_(spaces), there)
        .group_by(item.space)
    )
    with engine.connect() as connection:
        return {space: CopyCoverage(*values) for space, *values in connection.execute(query)}


def adopted_share(catalog: AdoptionCatalog, store: str, space: str) -> AdoptedShare:
    """The share of a space in *store* whose only checksum was computed when its source was adopted."""
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
    query = sa.select(sa.func.count(), total(row.size)).where(
        row.store == store, row.space == space, row.deleted.is_(False), adopted.exists()
    )
    with catalog.engine.connect() as connection:
        return AdoptedShare(*connection.execute(query).one())


def verification_times(engine: sa.Engine, store: str, space: str) -> Iterator[int | None]:
    """The time at which each live copy of a space was last verified."""
    row = manifest_table.c
    query = sa.select(row.verified_at).where(row.store == store, row.space == space, row.deleted.is_(False))
    with engine.connect() as connection:
        yield from connection.scalars(query)
