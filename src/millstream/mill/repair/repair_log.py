"""Repairs, and refused repairs with reasons: an append-only table beside the manifest. A repair is recorded before the
copy is changed, and removed from that second table in the transaction that adds its event. So a repair whose process
was killed in between is known, and its event is added later.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.decoding import prepared
from millstream.core.sql import make_tables_once
from millstream.stores.audit.holders import Holders, HolderState

metadata = sa.MetaData()

_repairs = sa.Table(
    "mill_repair",
    metadata,
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("store", NAME, nullable=False),
    sa.Column("space", NAME, nullable=False),
    sa.Column("content_id", CONTENT_ID, nullable=False),
    sa.Column("healed", sa.Boolean, nullable=False),
    sa.Column("reason", EXACT_LONG_TEXT, nullable=False),
    sa.Column("sha256", EXACT_LONG_TEXT),
    sa.Column("good", EXACT_LONG_TEXT),
    sa.Column("quarantined", EXACT_LONG_TEXT),
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
)

_begun = sa.Table(
    "mill_repair_begun",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
    sa.Column("holder", EXACT_LONG_TEXT, nullable=False),
    sa.Column("event", LONG_BYTES, nullable=False),
    sqlite_autoincrement=True,
)

_NOBODY = ""
"""The holder of a repair that failed with an outcome that is not known: anybody may find it out."""


class RepairEvent(msgspec.Struct, frozen=True):
    """The repair of one copy.

    ``reason`` is the fault, or why nothing was done; ``sha256`` is the expected hash, ``good`` the store with the good
    copy, and ``quarantined`` the content id of the replaced bytes in quarantine.
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


class BegunRepair(msgspec.Struct, frozen=True):
    """A repair that was begun: its number, who does it, and its event once it is done."""

    number: int
    holder: str
    event: RepairEvent


class RepairLog:
    """The tables of repairs in the database of *engine*; created where they are absent.

    *holder* names this process among those that repair.
    """

    def __init__(self, engine: sa.Engine, *, holder: str | None = None) -> None:
        self._engine = engine
        self._holders = Holders.beside(engine)
        self._holder = holder or self._holders.new()
        make_tables_once(engine, metadata)

    def append(self, events: Sequence[RepairEvent]) -> None:
        """Add *events*; durable when this returns."""
        if events:
            with self._engine.begin() as connection:
                _insert(connection, events)

    def begin(self, event: RepairEvent) -> BegunRepair:
        """Write down that a copy will be changed, and *event* will be what happened; durable when this returns."""
        values = {"holder": self._holder, "event": msgspec.json.encode(event)}
        with self._engine.begin() as connection:
            (number,) = connection.execute(sa.insert(_begun).values(values)).inserted_primary_key or (0,)
        return BegunRepair(number, self._holder, event)

    def end(self, begun: BegunRepair, event: RepairEvent | None) -> None:
        """Add *event* in the place of what was *begun*, or nothing where nothing was changed.

        Where another process has done so already, nothing is added.
        """
        with self._engine.begin() as connection:
            removed = connection.execute(sa.delete(_begun).where(_begun.c.number == begun.number)).rowcount
            if removed and event is not None:
                _insert(connection, [event])

    def abandon(self, begun: BegunRepair) -> None:
        """It is not known whether *begun* was done; the next look at the copy finds out (:meth:`left`)."""
        with self._engine.begin() as connection:
            connection.execute(sa.update(_begun).where(_begun.c.number == begun.number).values(holder=_NOBODY))

    def left(self) -> Sequence[BegunRepair]:
        """Unfinished repairs that no process works on, the oldest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_begun).order_by(_begun.c.number)).all()
        return [
            BegunRepair(number, holder, msgspec.json.decode(event, type=prepared(RepairEvent)))
            for number, holder, event in rows
            if holder == _NOBODY or self._holders.state(holder) == HolderState.ENDED
        ]

    def last(self, limit: int = 100) -> Sequence[RepairEvent]:
        """The last *limit* events, the latest first."""
        query = (
            sa.select(*[c for c in _repairs.c if c.name != "number"]).order_by(_repairs.c.number.desc()).limit(limit)
        )
        with self._engine.connect() as connection:
            return [RepairEvent(*row) for row in connection.execute(query)]


def _insert(connection: sa.Connection, events: Sequence[RepairEvent]) -> None:
    connection.execute(sa.insert(_repairs), [msgspec.to_builtins(event) for event in events])
