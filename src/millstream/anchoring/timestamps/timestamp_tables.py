"""The time stamps of the ledgers, and how the authorities answered, in the node's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.anchoring.database import metadata
from millstream.core.column_types import EXACT_LONG_TEXT, NAME, WHOLE_NUMBER, key_text
from millstream.core.sql import has_table, make_tables, writing
from millstream.core.sql_rows import put_row

_timestamps = sa.Table(
    "anchor_timestamps",
    metadata,
    sa.Column("ledger", NAME, primary_key=True),
    sa.Column("number", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("authority", key_text(1000), nullable=False),
    sa.Column("name", EXACT_LONG_TEXT, nullable=False),
    sa.Column("size", WHOLE_NUMBER),
    sa.Column("renews", WHOLE_NUMBER),
    sa.Column("time", WHOLE_NUMBER, nullable=False),
    sa.Column("ends_at", WHOLE_NUMBER, nullable=False),
    sa.Column("digest", EXACT_LONG_TEXT, nullable=False),
    sa.Column("document", EXACT_LONG_TEXT, nullable=False),
    sa.Column("token", EXACT_LONG_TEXT, nullable=False),
    sa.Column("received_at", WHOLE_NUMBER, nullable=False),
)
_authorities = sa.Table(
    "anchor_timestamp_authorities",
    metadata,
    sa.Column("ledger", NAME, primary_key=True),
    sa.Column("authority", key_text(1000), primary_key=True),
    sa.Column("asked_at", WHOLE_NUMBER, nullable=False),
    sa.Column("answered_at", WHOLE_NUMBER),
    sa.Column("problem", EXACT_LONG_TEXT),
)


class TimestampRecord(msgspec.Struct, frozen=True):
    """A time stamp: number ``number`` (from 1) of its ledger, of the ``authority`` with this URL.

    It is for a checkpoint of ``size`` entries, or renews the first ``renews`` time stamps of the ledger. ``name`` is
    the subject of the signing certificate, which is valid until ``ends_at``; ``time`` is the latest time at which it
    was made. ``document``, which was stamped, and ``token`` (DER) are CIDs. Times are microseconds since the epoch.
    """

    number: int
    authority: str
    name: str
    size: int | None
    renews: int | None
    time: int
    ends_at: int
    digest: str
    document: str
    token: str
    received_at: int


class AuthorityRecord(msgspec.Struct, frozen=True):
    """How an authority answered last: ``problem`` is why there was no token (None: there was one).

    ``answered_at`` is the time of its last token. Times are microseconds since the epoch (UTC).
    """

    asked_at: int
    answered_at: int | None = None
    problem: str | None = None


class TimestampTable:
    """The time stamps of *ledger*. Nothing is written before the first one."""

    def __init__(self, engine: sa.Engine, ledger: str) -> None:
        self._engine = engine
        self.ledger = ledger
        self._is_made = False

    def records(self) -> Sequence[TimestampRecord]:
        """All time stamps, in the order in which they were received."""
        columns = [_timestamps.c[name] for name in TimestampRecord.__struct_fields__]
        query = sa.select(*columns).where(_timestamps.c.ledger == self.ledger).order_by(_timestamps.c.number)
        return [TimestampRecord(*values) for values in self._rows(query, _timestamps)]

    def newest(self, authority: str) -> TimestampRecord | None:
        """The newest time stamp of a checkpoint by the authority with the URL *authority*."""
        columns = [_timestamps.c[name] for name in TimestampRecord.__struct_fields__]
        query = sa.select(*columns).where(_timestamps.c.ledger == self.ledger, _timestamps.c.authority == authority)
        newest = query.where(_timestamps.c.size.is_not(None)).order_by(_timestamps.c.number.desc()).limit(1)
        return next((TimestampRecord(*values) for values in self._rows(newest, _timestamps)), None)

    def stamped_size(self) -> int:
        """How many entries of the ledger have a time stamp."""
        query = sa.select(sa.func.max(_timestamps.c.size)).where(_timestamps.c.ledger == self.ledger)
        return max((size or 0 for (size,) in self._rows(query, _timestamps)), default=0)

    def ending(self, after: int, before: int) -> Sequence[int]:
        """The ends of the time stamps that end between *after* and *before* and that nothing renews, in order."""
        columns = _timestamps.c
        of_ledger = columns.ledger == self.ledger
        every = sa.select(columns.renews, columns.time, columns.ends_at).where(of_ledger, columns.renews.is_not(None))
        ending = sa.select(columns.number, columns.ends_at).where(of_ledger, columns.ends_at.between(after, before))
        renewals = self._rows(every, _timestamps)
        found = self._rows(ending.order_by(columns.ends_at), _timestamps)

        def is_renewed(number: int, ends_at: int) -> bool:
            return any(renews >= number and time <= ends_at < end for renews, time, end in renewals)

        return [ends_at for number, ends_at in found if not is_renewed(number, ends_at)]

    def add(self, record: TimestampRecord) -> TimestampRecord:
        """Add *record* as the last one, whatever its number; returns it with its number."""
        self._make()
        with writing(self._engine) as connection:
            query = sa.select(sa.func.max(_timestamps.c.number)).where(_timestamps.c.ledger == self.ledger)
            record = msgspec.structs.replace(record, number=(connection.scalar(query) or 0) + 1)
            put_row(connection, _timestamps, {**msgspec.structs.asdict(record), "ledger": self.ledger})
        return record

    def authorities(self) -> dict[str, AuthorityRecord]:
        """How the authorities answered last, by URL."""
        columns = [column for column in _authorities.c if column.name != "ledger"]
        rows = self._rows(sa.select(*columns).where(_authorities.c.ledger == self.ledger), _authorities)
        return {name: AuthorityRecord(*values) for name, *values in rows}

    def put_authority(self, name: str, record: AuthorityRecord) -> None:
        """Keep how the authority *name* answered."""
        self._make()
        values = {**msgspec.structs.asdict(record), "ledger": self.ledger, "authority": name}
        with writing(self._engine) as connection:
            put_row(connection, _authorities, values)

    def _rows(self, query: sa.Select[Any], table: sa.Table) -> Sequence[Sequence[Any]]:
        with self._engine.connect() as connection:
            self._is_made = self._is_made or has_table(connection, table.name)
            return connection.execute(query).all() if self._is_made else []

    def _make(self) -> None:
        make_tables(self._engine, metadata, [_timestamps, _authorities])
        self._is_made = True
