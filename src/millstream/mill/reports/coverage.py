"""How well the copies are covered by checks: by store and space, and what was found, in one pass over the manifest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from millstream.core.sql_rows import total
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import ManifestRow, manifest_table


class SpaceCoverage(msgspec.Struct, frozen=True):
    """The live items of one space in one store, and how many of them the last checks found good, bad, or did not see.

    ``checked`` counts items whose last check found out their state; one that could not be read is not among them.
    ``oldest_check`` is when the item was checked that was not checked for longest, ``newest_check`` the last such check
    (microseconds, None where nothing was checked). ``failed`` counts items whose last check found a fault,
    ``missing`` those of them that are not there. ``unread`` items could not be checked the last time; ``oldest_new`` is
    when the first of those that were never checked was recorded (microseconds, None where all were checked).
    """

    store: str
    space: str
    items: int
    bytes: int
    checked: int
    verified: int
    failed: int
    missing: int
    oldest_check: int | None
    newest_check: int | None
    unread: int
    oldest_new: int | None

    @property
    def coverage(self) -> float | None:
        """The share of the items whose state the last check found out; None where there are none."""
        return self.checked / self.items if self.items else None

    def left_out(self, check_began: int | None) -> int:
        """Items without a result that the check that began then (microseconds, None: there was none) left out.

        What was recorded later is for the next check.
        """
        is_newer = None not in (check_began, self.oldest_new) and self.oldest_new > check_began  # type: ignore[operator]
        return self.unread if is_newer else self.items - self.checked


def coverage_of(engine: sa.Engine) -> Sequence[SpaceCoverage]:
    """Every space of every store that has live items, by store and space."""
    row, count = manifest_table.c, sa.func.count
    failed = row.outcome == CheckVerdict.FAILURE.value
    checked_at = sa.case((row.outcome.in_([CheckVerdict.SUCCESS.value, CheckVerdict.FAILURE.value]), row.checked_at))
    query = (
        sa.select(
            row.store,
            row.space,
            count(),
            total(row.size),
            count(checked_at),
            count(sa.case((row.outcome == CheckVerdict.SUCCESS.value, 1))),
            count(sa.case((failed, 1))),
            count(sa.case((row.missing, 1))),
            sa.func.min(checked_at),
            sa.func.max(checked_at),
            count(sa.case((checked_at.is_(None), row.outcome))),
            sa.func.min(sa.case((row.outcome.is_(None), row.modified))),
        )
        .where(row.deleted.is_(False))
        .group_by(row.store, row.space)
        .order_by(row.store, row.space)
    )
    with engine.connect() as connection:
        return [SpaceCoverage(*values) for values in connection.execute(query)]


def findings_of(engine: sa.Engine, limit: int) -> Sequence[ManifestRow]:
    """Up to *limit* items whose last check found a fault or came to no end, by store, space and id."""
    row = manifest_table.c
    bad = row.outcome.not_in([CheckVerdict.SUCCESS.value, CheckVerdict.IGNORE.value])
    query = sa.select(manifest_table).where(row.deleted.is_(False), row.outcome.is_not(None), bad)
    query = query.order_by(row.store, row.space, row.content_id).limit(limit)
    with engine.connect() as connection:
        return [ManifestRow(*values) for values in connection.execute(query)]
