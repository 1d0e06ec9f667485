"""What was repaired, and what was not and why: an append-only table beside the manifest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from millstream.core.sql import make_tables

_metadata = sa.MetaData()

_repairs = sa.Table(
    "mill_repair",
    _metadata,
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("store", sa.Text, nullable=False),
    sa.Column("space", sa.Text, nullable=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("healed", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text),
    sa.Column("good", sa.Text),
    sa.Column("quarantined", sa.Text),
    sa.Column("number", sa.Integer, primary_key=True),
)


class RepairEvent(msgspec.Struct, frozen=True):
    """One copy of one item was repaired, or was not.

    ``reason`` says what was wrong, or why nothing was done; ``sha256`` is what the copy should hold, ``good`` the store
    the bytes came from, ``quarantined`` the content id in the quarantine where the bad bytes are kept.
    """

    at: int
    store: str
    space: str
    content_id: str
    healed: bool
    reason: str
    sha256: str | None = None
    good: str | None = None
    quarantined: str | None = None


class RepairLog:
    """The table of repairs in the database of *engine*; created where it is absent."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        make_tables(engine, _metadata)

    def append(self, events: Sequence[RepairEvent]) -> None:
        """Add *events*; durable when this returns."""
        if events:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(_repairs), [msgspec.to_builtins(event) for event in events])

    def last(self, limit: int = 100) -> Sequence[RepairEvent]:
        """The last *limit* events, the latest first."""
        query = (
            sa.select(*[c for c in _repairs.c if c.name != "number"]).order_by(_repairs.c.number.desc()).limit(limit)
        )
        with self._engine.connect() as connection:
            return [RepairEvent(*row) for row in connection.execute(query)]
