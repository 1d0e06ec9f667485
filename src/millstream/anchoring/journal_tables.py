"""The tables of the journal, in the node's database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from millstream.anchoring.database import metadata
from millstream.anchoring.name_runs import NameRuns, pages_table, runs_table
from millstream.anchoring.states import BatchState
from millstream.core.column_types import EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER


def _is_server(*_: Any, dialect: sa.Dialect, **_options: Any) -> bool:
    return dialect.name != "sqlite"


streams = sa.Table(
    "anchor_streams",
    metadata,
    sa.Column("stream", WHOLE_NUMBER, primary_key=True),
    sa.Column("log", NAME, nullable=False),
    sa.Column("config", EXACT_LONG_TEXT, nullable=False),
    sa.UniqueConstraint("log", "config").ddl_if(dialect="sqlite"),  # too long for a key of a server
    sa.Index("anchor_streams_log", "log").ddl_if(callable_=_is_server),
)
batches = sa.Table(
    "anchor_batches",
    metadata,
    sa.Column("seq", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("stream", WHOLE_NUMBER, nullable=False),
    sa.Column("log", NAME, nullable=False),
    sa.Column("batch", NAME, nullable=False),
    sa.Column("source", EXACT_LONG_TEXT, nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("size", WHOLE_NUMBER, nullable=False),
    sa.Column("root", EXACT_LONG_TEXT, nullable=False),
    sa.Column("cut", WHOLE_NUMBER),
    sa.Column("reason", EXACT_LONG_TEXT),
    sa.Column("end", sa.BigInteger),  # None, as the next, for batches that were accepted before these were kept
    sa.Column("ended", EXACT_LONG_TEXT),
    sa.Column("accepted", sa.BigInteger),  # when (microseconds); None as before, and for batches of packed cuts
    sa.UniqueConstraint("log", "batch"),
    sa.Index("anchor_batches_waiting", "cut", "reason", "stream", "seq").ddl_if(dialect="sqlite"),
    sa.Index("anchor_batches_cut", "cut", "stream", "seq").ddl_if(callable_=_is_server),
)
payloads = sa.Table(
    "anchor_payloads",
    metadata,
    sa.Column("seq", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("ids", LONG_BYTES, nullable=False),
    sa.Column("header", LONG_BYTES, nullable=False),
    sa.Column("lines", LONG_BYTES, nullable=False),
)
packed = sa.Table(
    "anchor_packed_cuts",
    metadata,
    sa.Column("cut", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("log", NAME, nullable=False),
    sa.Column("first", WHOLE_NUMBER, nullable=False),
    sa.Column("ids", LONG_BYTES, nullable=False),
    sa.Column("sizes", LONG_BYTES, nullable=False),
)
"""The message ids of cuts that were packed before they were written down, until they are observed: all of a cut as one
array (little-endian uint64), with the number of ids of each batch (uint32), whose places count up from ``first``."""
members = sa.Table(
    "anchor_packed_members",
    metadata,
    sa.Column("cut", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("log", NAME, nullable=False),
    sa.Column("first", WHOLE_NUMBER, nullable=False, unique=True),
    sa.Column("last", WHOLE_NUMBER, nullable=False, unique=True),
    sa.Column("earliest", sa.BigInteger, nullable=False),
    sa.Column("latest", sa.BigInteger, nullable=False),
    sa.Column("ends", EXACT_LONG_TEXT, nullable=False),
    sa.Column("members", LONG_BYTES, nullable=False),
)
"""Cuts that were packed before they were written down, for ever.

``members`` are its batches (``packed_members.py``), whose places are ``first`` to ``last``, whose start times lie from
``earliest`` to ``latest``, and of which ``ends`` counts why they ended (JSON). A batch that was refused has a row in
``anchor_batches`` as well, which is the one that counts.
"""
rejects = sa.Table(
    "anchor_rejects",
    metadata,
    sa.Column("log", NAME, primary_key=True),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("stream", WHOLE_NUMBER, nullable=False),
    sa.Column("seq", WHOLE_NUMBER, nullable=False),
    sa.Column("reason", EXACT_LONG_TEXT, nullable=False),
    sa.Column("cut", WHOLE_NUMBER),
    sa.Index("anchor_rejects_waiting", "cut", "stream", "seq"),
)
cuts = sa.Table(
    "anchor_cuts",
    metadata,
    sa.Column("cut", WHOLE_NUMBER, primary_key=True),
    sa.Column("stream", WHOLE_NUMBER, nullable=False),
    sa.Column("state", EXACT_LONG_TEXT, nullable=False),
    sa.Column("anchor_string", EXACT_LONG_TEXT, nullable=False),
    sa.Column("manifest", LONG_BYTES, nullable=False),
    sa.Column("ledger_after", sa.BigInteger, nullable=False),
    sa.Column("anchor", sa.BigInteger),
)

feeds = sa.Table(
    "anchor_feeds",
    metadata,
    sa.Column("batches", NAME, primary_key=True),
    sa.Column("last_id", sa.BigInteger, nullable=False),
)
"""How far each log of batches was passed to the journal."""

WAITING = sa.and_(batches.c.cut.is_(None), batches.c.reason.is_(None))
"""Batches that are accepted and in no cut yet."""

OPEN = cuts.c.state != BatchState.OBSERVED
"""Cuts that are under way."""

runs, pages = runs_table("anchor_journal_runs", metadata), pages_table("anchor_journal_pages", metadata)
"""Where batches of packed cuts are found by name: places in the order of adding."""

NAMES = NameRuns(runs, pages)

ALL = [streams, batches, payloads, packed, members, rejects, cuts, feeds, runs, pages]
