"""The tables of members and of their leases. They say how a database is used, and are not moved with a node."""

from __future__ import annotations

import sqlalchemy as sa

from millstream.core.column_types import LONG_BYTES, exact_text, key_text
from millstream.core.leases import lease_table

metadata = sa.MetaData()

members = sa.Table(
    "node_members",
    metadata,
    sa.Column("id", exact_text(64), primary_key=True),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("seen", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger),
    sa.Column("draining", sa.Boolean, nullable=False),
    sa.Column("details", LONG_BYTES, nullable=False),
    sa.Column("lost", sa.Boolean),
)
leases = lease_table(
    "node_leases",
    metadata,
    "role",
    key_text(500),
    sa.Column("acquired", sa.BigInteger, nullable=False),
    sa.Column("unowned_since", sa.BigInteger),
)
"""``unowned_since`` is NULL while the holder runs the role, and 0 before a member ran it for the first time."""
