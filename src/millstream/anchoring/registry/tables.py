"""The tables of the registry; the same on SQLite and MariaDB."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

metadata = sa.MetaData()

_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _name(length: int) -> sa.types.TypeEngine[str]:
    """Text that is compared byte for byte: MariaDB would take two suffixes for one that differ in case alone."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _blob() -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


operations = sa.Table(
    "registry_operations",
    metadata,
    sa.Column("seq", _number, primary_key=True),
    sa.Column("id", _name(64), nullable=False, unique=True),
    sa.Column("suffix", _name(128), nullable=False),
    sa.Column("type", _name(16), nullable=False),
    sa.Column("version", _name(32), nullable=False),
    sa.Column("request", _blob(), nullable=False),
    sa.Column("state", _name(16), nullable=False),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("instance", _name(64)),
    sa.Column("retries", sa.Integer, nullable=False),
    sa.Column("accepted_at", sa.BigInteger, nullable=False),
    sa.Column("available_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("cut", _number),
    sa.Column("anchor", _number),
    sa.Column("place", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Index("registry_operations_chain", "suffix", "open", "seq"),
    sa.Index("registry_operations_waiting", "state", "instance", "seq"),
    sa.Index("registry_operations_cut", "cut"),
    sa.Index("registry_operations_expiry", "expires_at"),
)
cuts = sa.Table(
    "registry_cuts",
    metadata,
    sa.Column("cut", _number, primary_key=True),
    sa.Column("instance", _name(64), nullable=False),
    sa.Column("anchor_string", _name(600), nullable=False),
    sa.Column("version", _name(32), nullable=False),
    sa.Column("ledger_after", _number, nullable=False),
    sa.Column("number", _number),
    sa.Column("open", sa.Boolean, nullable=False, index=True),
)
instances = sa.Table(
    "registry_instances",
    metadata,
    sa.Column("instance", _name(64), primary_key=True),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
)
tasks = sa.Table(
    "registry_tasks",
    metadata,
    sa.Column("task", _name(64), primary_key=True),
    sa.Column("holder", _name(64), nullable=False),
    sa.Column("epoch", _number, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("ran_at", sa.BigInteger, nullable=False),
)
anchors = sa.Table(
    "registry_anchors",
    metadata,
    sa.Column("number", _number, primary_key=True, autoincrement=False),
    sa.Column("hash", _name(64), nullable=False),
    sa.Column("operations", sa.Integer, nullable=False),
    sa.Column("fault", sa.Text),
)
pending_anchors = sa.Table(
    "registry_pending_anchors",
    metadata,
    sa.Column("number", _number, primary_key=True, autoincrement=False),
    sa.Column("entry", _blob(), nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("next_at", sa.BigInteger, nullable=False),
    sa.Column("resolved_at", sa.BigInteger, index=True),
)
history = sa.Table(
    "registry_history",
    metadata,
    sa.Column("suffix", _name(128), primary_key=True),
    sa.Column("number", _number, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("request", _blob(), nullable=False),
)
following = sa.Table(
    "registry_following",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ledger", sa.Text, nullable=False),
    sa.Column("profile", _name(32), nullable=False),
    sa.Column("method", _name(64), nullable=False),
    sa.Column("begun", sa.Boolean, nullable=False),
    sa.Column("chain", sa.Boolean),
    sa.Column("behind", _number, nullable=False),
    sa.Column("checked_at", sa.BigInteger),
    sa.Column("error", sa.Text),
)

ALL = [operations, cuts, instances, tasks, anchors, pending_anchors, history, following]
