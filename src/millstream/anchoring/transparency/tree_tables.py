"""The durable trees of the ledgers, in the node's database: their tiles, sizes and newest checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import sqlalchemy as sa

from millstream.anchoring.database import metadata
from millstream.anchoring.errors import RESTORE_DATABASE, LedgerError, LedgerUnavailableError
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.core.column_types import EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.sql import make_tables
from millstream.core.sql_rows import replacing

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPICursor


class _Statement(NamedTuple):
    """A statement for SQLite and PostgreSQL, and the same for MySQL."""

    text: str
    on_mysql: str


trees = sa.Table(
    "anchor_trees",
    metadata,
    sa.Column("ledger", NAME, primary_key=True),
    sa.Column("size", WHOLE_NUMBER, nullable=False),
    sa.Column("checkpoint", LONG_BYTES),
    sa.Column("checkpoint_size", WHOLE_NUMBER),
    sa.Column("checkpoint_root", LONG_BYTES),
    sa.Column("problem", EXACT_LONG_TEXT),
)
tiles = sa.Table(
    "anchor_tree_tiles",
    metadata,
    sa.Column("ledger", NAME, primary_key=True),
    sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tile", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("hashes", LONG_BYTES, nullable=False),
)
"""A tile that is not full has fewer hashes; hashes are only ever added to it."""


def _put(table: sa.Table, *columns: str, changed: Sequence[str] = ()) -> _Statement:
    """The statement that inserts a row (its key, then *columns*), or changes the columns *changed* (all) of it."""
    names = [*(column.name for column in table.primary_key), *columns]
    insert = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "  # noqa: S608
    conflict = replacing(table, changed or columns)
    return _Statement(insert + conflict.clause, insert + conflict.on_mysql)


_STATE = "SELECT size, checkpoint, checkpoint_size, checkpoint_root, problem FROM anchor_trees WHERE ledger = ?"
_PUT_STATE = _put(trees, "size", "checkpoint", "checkpoint_size", "checkpoint_root")
_PUT_PROBLEM = _put(trees, "problem", "size", changed=("problem",))
_TILE = "SELECT hashes FROM anchor_tree_tiles WHERE ledger = ? AND level = ? AND tile = ?"
_PUT_TILE = _put(tiles, "hashes")


class SignedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint as it was signed: the tree of ``size`` leaves has this ``root`` (32 bytes)."""

    data: bytes
    size: int
    root: bytes

    @classmethod
    def read(cls, data: bytes, signer: CheckpointSigner, place: str = "") -> SignedCheckpoint:
        """What the checkpoint *data* at *place* says, once its signature was checked: see
        :meth:`CheckpointSigner.read`."""
        head = signer.read(data, place)
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
            f"the newest checkpoint of the ledger {ledger!r} does not match its row in the node's database: the "
            f"database is damaged, or another program changed the row. {RESTORE_DATABASE}"
        )


def write_state(connection: sa.Connection, ledger: str, state: TreeState) -> None:
    """Keep the *state* of the tree of *ledger*, but for its problem."""
    signed = state.checkpoint
    newest = (None, None, None) if signed is None else (signed.data, signed.size, signed.root)
    _cursor(connection, _PUT_STATE, [(ledger, state.size, *newest)])


def write_problem(connection: sa.Connection, ledger: str, problem: str | None) -> None:
    """Keep why the last attempt to sign the tree of *ledger* failed."""
    _cursor(connection, _PUT_PROBLEM, [(ledger, problem, 0)])


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
                f"tile {number} of level {level} is missing from the tree of the ledger {self._ledger!r}: the "
                f"node's database is damaged, or another program changed it. {RESTORE_DATABASE}"
            )
        hashes: bytes = row[0]
        return hashes

    def put(self, tiles: Mapping[tuple[int, int], bytes]) -> None:
        rows = [(self._ledger, level, number, hashes) for (level, number), hashes in tiles.items()]
        assert self.connection is not None
        _cursor(self.connection, _PUT_TILE, rows)


def _cursor(connection: sa.Connection, statement: str | _Statement, rows: Sequence[tuple[Any, ...]]) -> DBAPICursor:
    """*statement*, run for each of *rows* by the driver: SQLAlchemy would take half of the time of an anchor.

    Raises :class:`LedgerUnavailableError`.
    """
    dialect = connection.dialect
    if isinstance(statement, _Statement):
        statement = statement.on_mysql if dialect.name == "mysql" else statement.text
    if dialect.name != "sqlite":
        statement = statement.replace("?", "%s")
    try:
        cursor = connection.connection.cursor()
        if len(rows) == 1:
            cursor.execute(statement, rows[0])
        else:
            cursor.executemany(statement, rows)
        return cursor
    except dialect.loaded_dbapi.Error as error:
        raise LedgerUnavailableError(
            f"cannot read or write the ledger's tree in the node's database: {error}; check that the database runs "
            "and has free space"
        ) from error
