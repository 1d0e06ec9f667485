"""Leases in a table: one holder at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.core.column_types import exact_text
from millstream.core.leases import Leases, lease_table
from millstream.core.sql import SqlDatabase
from support.lost_replies import lost_reply_to_commit

metadata = sa.MetaData()
table = lease_table("leases", metadata, "name", exact_text(64))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqlDatabase]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    yield SqlDatabase(engine, VirtualClock(), metadata)
    engine.dispose()


def test_a_lease_whose_commit_was_not_answered_is_held(database: SqlDatabase) -> None:
    one, two = Leases(database, table, "one", 30.0), Leases(database, table, "two", 30.0)
    with lost_reply_to_commit(database.engine):
        lease = one.acquire("upkeep")
    assert lease is not None and lease.epoch == 1
    assert two.acquire("upkeep") is None and one.acquire("upkeep") is None
    one.release(lease)
    assert two.acquire("upkeep") is not None, "it was released"
