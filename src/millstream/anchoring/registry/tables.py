"""The tables of the registry; the same on SQLite and MariaDB."""

from __future__ import annotations

import sqlalchemy as sa

from millstream.core.column_types import LONG_BYTES, WHOLE_NUMBER, exact_text
from millstream.core.leases import lease_table

metadata = sa.MetaData()


def _index_of_set_values(name: str, column: str) -> sa.Index:
    """An index of the rows that have a value in *column*, where the database can leave the others out."""
    has_value = sa.column(column).is_not(None)
    return sa.Index(name, column, sqlite_where=has_value, postgresql_where=has_value)


operations = sa.Table(
    "registry_operations",
    metadata,
    sa.Column("seq", WHOLE_NUMBER, primary_key=True),
    sa.Column("id", exact_text(64), nullable=False, unique=True),
    sa.Column("suffix", exact_text(128), nullable=False),
    sa.Column("type", exact_text(16), nullable=False),
    sa.Column("version", exact_text(32), nullable=False),
    sa.Column("request", LONG_BYTES, nullable=False),
    sa.Column("state", exact_text(16), nullable=False),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("instance", exact_text(64)),
    sa.Column("retries", sa.Integer, nullable=False),
    sa.Column("accepted_at", sa.BigInteger, nullable=False),
    sa.Column("available_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("cut", WHOLE_NUMBER),
    sa.Column("anchor", WHOLE_NUMBER),
    sa.Column("place", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Index("registry_operations_chain", "suffix", "open", "seq"),
    sa.Index("registry_operations_waiting", "state", "instance", "seq"),
    _index_of_set_values("registry_operations_cut", "cut"),
    _index_of_set_values("registry_operations_expiry", "expires_at"),
)
cuts = sa.Table(
    "registry_cuts",
    metadata,
    sa.Column("cut", WHOLE_NUMBER, primary_key=True),
    sa.Column("instance", exact_text(64), nullable=False),
    sa.Column("anchor_string", exact_text(600), nullable=False),
    sa.Column("version", exact_text(32), nullable=False),
    sa.Column("ledger_after", WHOLE_NUMBER, nullable=False),
    sa.Column("number", WHOLE_NUMBER),
    sa.Column("open", sa.Boolean, nullable=False, index=True),
)
cut_files = sa.Table(
    "registry_cut_files",
    metadata,
    sa.Column("cut", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("uri", exact_text(600), nullable=False),
    sa.Column("data", LONG_BYTES, nullable=False),
)
"""The files of open cuts, in pieces of at most 1 MiB: another zlib would compress their content to other bytes."""
instances = sa.Table(
    "registry_instances",
    metadata,
    sa.Column("instance", exact_text(64), primary_key=True),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
)
tasks = lease_table(
    "registry_tasks", metadata, "task", exact_text(64), sa.Column("ran_at", sa.BigInteger, nullable=False)
)
anchors = sa.Table(
    "registry_anchors",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("hash", exact_text(64), nullable=False),
    sa.Column("operations", sa.Integer, nullable=False),
    sa.Column("fault", sa.Text),
)
pending_anchors = sa.Table(
    "registry_pending_anchors",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("entry", LONG_BYTES, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("next_at", sa.BigInteger, nullable=False),
    sa.Column("resolved_at", sa.BigInteger, index=True),
)
history = sa.Table(
    "registry_history",
    metadata,
    sa.Column("suffix", exact_text(128), primary_key=True),
    sa.Column("number", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("request", LONG_BYTES, nullable=False),
)
following = sa.Table(
    "registry_following",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ledger", sa.Text, nullable=False),
    sa.Column("profile", exact_text(32), nullable=False),
    sa.Column("method", exact_text(64), nullable=False),
    sa.Column("begun", sa.Boolean, nullable=False),
    sa.Column("chain", sa.Boolean),
    sa.Column("behind", WHOLE_NUMBER, nullable=False),
    sa.Column("checked_at", sa.BigInteger),
    sa.Column("error", sa.Text),
)

ALL = [operations, cuts, cut_files, instances, tasks, anchors, pending_anchors, history, following]
