"""The state of a witness: the newest cosigned checkpoint of each ledger, in one database file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import WHOLE_NUMBER
from millstream.core.sql import make_tables, writing
from millstream.core.sql_rows import insert_new, put_row
from millstream.core.sqlite_file import open_database

_IF_DAMAGED = (
    "do not restore the file from a backup, because a witness without its newest cosignatures may cosign a fork; "
    "retire the key of the witness, and start the witness with a new key (docs/how-to/witnesses.md)"
)

metadata = sa.MetaData()
_heads = sa.Table(
    "witness_heads",
    metadata,
    sa.Column("origin", sa.Text, primary_key=True),
    sa.Column("size", WHOLE_NUMBER, nullable=False),
    sa.Column("root", sa.LargeBinary, nullable=False),
    sa.Column("checkpoint", sa.LargeBinary, nullable=False),
    sa.Column("recorded_at", WHOLE_NUMBER, nullable=False),
)
_forks = sa.Table(
    "witness_forks",
    metadata,
    sa.Column("origin", sa.Text, primary_key=True),
    sa.Column("size", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("recorded", sa.LargeBinary, nullable=False),
    sa.Column("offered", sa.LargeBinary, nullable=False),
    sa.Column("offered_at", WHOLE_NUMBER, nullable=False),
)


class ForkEvidence(msgspec.Struct, frozen=True):
    """Two checkpoints (signed notes) of one ledger and size with different roots: the ledger's key signed both."""

    origin: str
    size: int
    recorded: bytes
    offered: bytes
    offered_at: int


class WitnessedHead(msgspec.Struct, frozen=True):
    """The tree of ``origin`` that was cosigned last: ``size`` leaves, ``root`` of 32 bytes.

    ``checkpoint`` is the signed note; ``recorded_at`` is microseconds since the epoch (UTC).
    """

    origin: str
    size: int
    root: bytes
    checkpoint: bytes
    recorded_at: int


class WitnessState:
    """The heads in the file *path*, which is made where it is absent. Thread-safe; several processes may share it."""

    def __init__(self, path: Path) -> None:
        self._engine = open_database(path, ["witness_"], if_damaged=_IF_DAMAGED)
        make_tables(self._engine, metadata)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[WitnessTurn]:
        """A transaction in which no other process compares or records; it is durable at the end of the block."""
        with writing(self._engine) as connection:
            yield WitnessTurn(connection)

    def heads(self) -> list[WitnessedHead]:
        """The heads of all ledgers, in the order of their origins."""
        with self._engine.connect() as connection:
            return [WitnessedHead(*row) for row in connection.execute(sa.select(_heads).order_by(_heads.c.origin))]

    def forks(self) -> list[ForkEvidence]:
        """The evidence of forks, at most one of each origin and size."""
        with self._engine.connect() as connection:
            return [ForkEvidence(*row) for row in connection.execute(sa.select(_forks))]


class WitnessTurn:
    """The heads within a transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def head(self, origin: str) -> WitnessedHead | None:
        """The head that was recorded last for *origin*, None before the first."""
        row = self._connection.execute(sa.select(_heads).where(_heads.c.origin == origin)).one_or_none()
        return None if row is None else WitnessedHead(*row)

    def record(self, head: WitnessedHead) -> None:
        """Record *head* in place of the one before it."""
        put_row(self._connection, _heads, msgspec.structs.asdict(head))

    def record_fork(self, fork: ForkEvidence) -> None:
        """Keep *fork*, unless one of its origin and size is kept already."""
        self._connection.execute(insert_new(self._connection, _forks), msgspec.structs.asdict(fork))
