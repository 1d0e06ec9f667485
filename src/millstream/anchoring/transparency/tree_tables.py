"""The durable trees of the ledgers, in the node's database: their tiles, sizes and newest checkpoints."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from millstream.anchoring.database import metadata
from millstream.anchoring.errors import LedgerError, LedgerUnavailableError
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.core.column_types import WHOLE_NUMBER
from millstream.core.sql import make_tables

trees = sa.Table(
    "anchor_trees",
    metadata,
    sa.Column("ledger", sa.Text, primary_key=True),
    sa.Column("size", WHOLE_NUMBER, nullable=False),
    sa.Column("checkpoint", sa.LargeBinary),
    sa.Column("checkpoint_size", WHOLE_NUMBER),
    sa.Column("checkpoint_root", sa.LargeBinary),
    sa.Column("problem", sa.Text),
)
tiles = sa.Table(
    "anchor_tree_tiles",
    metadata,
    sa.Column("ledger", sa.Text, primary_key=True),
    sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tile", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("hashes", sa.LargeBinary, nullable=False),
)
"""A tile that is not full has fewer hashes; hashes are only ever added to it."""

_STATE = "SELECT size, checkpoint, checkpoint_size, checkpoint_root, problem FROM anchor_trees WHERE ledger = ?"
_PUT_STATE = (
    "INSERT INTO anchor_trees (ledger, size, checkpoint, checkpoint_size, checkpoint_root) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (ledger) DO UPDATE SET size = excluded.size, checkpoint = excluded.checkpoint, "
    "checkpoint_size = excluded.checkpoint_size, checkpoint_root = excluded.checkpoint_root"
)
_PUT_PROBLEM = (
    "INSERT INTO anchor_trees (ledger, size, problem) VALUES (?, 0, ?) "
    "ON CONFLICT (ledger) DO UPDATE SET problem = excluded.problem"
)
_TILE = "SELECT hashes FROM anchor_tree_tiles WHERE ledger = ? AND level = ? AND tile = ?"
_PUT_TILE = (
    "INSERT INTO anchor_tree_tiles (ledger, level, tile, hashes) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (ledger, level, tile) DO UPDATE SET hashes = excluded.hashes"
)


class SignedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint as it was signed: the tree of ``size`` leaves has this ``root`` (32 bytes)."""

    data: bytes
    size: int
    root: bytes

    @classmethod
    def read(cls, data: bytes, signer: CheckpointSigner) -> SignedCheckpoint:
        """What the checkpoint *data* says, once its signature was checked. Raises :class:`LedgerError`."""
        head = signer.read(data)
        return cls(data, head.size, head.root)


class TreeState(msgspec.Struct, frozen=True):
    """How many leaves a tree has, and its newest checkpoint.

    ``problem`` is why the last attempt to sign, copy or publish failed, None where it did not.
    """

    size: int = 0
    checkpoint: SignedCheckpoint | None = None
    problem: str | None = None


def make_tree_tables(engine: sa.Engine) -> None:
    """Make the tables of the trees where they are absent."""
    make_tables(engine, metadata, [trees, tiles])


def read_state(connection: sa.Connection, ledger: str) -> TreeState:
    """The state of the tree of *ledger*; that of an empty one where there is none."""
    row = _cursor(connection, _STATE, [(ledger,)]).fetchone()
    if row is None:
        return TreeState()
    size, data, signed_size, root, problem = row
    return TreeState(size, None if data is None else SignedCheckpoint(data, signed_size, root), problem)


def require_signed_row(row: SignedCheckpoint, signer: CheckpointSigner, ledger: str) -> None:
    """Size and root of *row* are those that were signed. Raises :class:`LedgerError`."""
    if SignedCheckpoint.read(row.data, signer) != row:
        raise LedgerError(
            f"the newest checkpoint of the ledger {ledger!r} in node.db does not match its row: "
            "another program changed the database. Restore node.db from a backup"
        )


def write_state(connection: sa.Connection, ledger: str, state: TreeState) -> None:
    """Keep the *state* of the tree of *ledger*, but for its problem."""
    signed = state.checkpoint
    newest = (None, None, None) if signed is None else (signed.data, signed.size, signed.root)
    _cursor(connection, _PUT_STATE, [(ledger, state.size, *newest)])


def write_problem(connection: sa.Connection, ledger: str, problem: str | None) -> None:
    """Keep why the last attempt to sign the tree of *ledger* failed."""
    _cursor(connection, _PUT_PROBLEM, [(ledger, problem)])


class DatabaseTiles:
    """The tiles of the tree of *ledger* in the database of *engine*.

    They are written through ``connection``, which the user sets for a transaction, and read through it while it is set.
    """

    def __init__(self, engine: sa.Engine, ledger: str, connection: sa.Connection | None = None) -> None:
        self._engine = engine
        self._ledger = ledger
        self.connection = connection

    def tile(self, level: int, number: int) -> bytes:
        if self.connection is None:
            with self._engine.connect() as connection:
                return DatabaseTiles(self._engine, self._ledger, connection).tile(level, number)
        row = _cursor(self.connection, _TILE, [(self._ledger, level, number)]).fetchone()
        if row is None:
            raise LedgerError(
                f"tile {number} of level {level} is missing from the tree of the ledger {self._ledger!r}: another "
                "program changed the node's database; restore node.db from a backup"
            )
        hashes: bytes = row[0]
        return hashes

    def put(self, tiles: Mapping[tuple[int, int], bytes]) -> None:
        rows = [(self._ledger, level, number, hashes) for (level, number), hashes in tiles.items()]
        assert self.connection is not None
        _cursor(self.connection, _PUT_TILE, rows)


def _cursor(connection: sa.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> sqlite3.Cursor:
    """*statement*, run for each of *rows* by SQLite's driver: SQLAlchemy would take half of the time of an anchor.

    Raises :class:`LedgerUnavailableError`.
    """
    try:
        cursor = cast(sqlite3.Cursor, connection.connection.cursor())
        return cursor.execute(statement, rows[0]) if len(rows) == 1 else cursor.executemany(statement, rows)
    except sqlite3.Error as error:
        raise LedgerUnavailableError(f"cannot use the tree of the ledger in the node's database: {error}") from error
