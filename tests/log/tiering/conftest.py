"""The logs that tests of tiers move blocks of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import Log, LogStore
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.mysql import MysqlBackend, parse_address
from millstream.log.backends.postgres import PostgresBackend
from millstream.log.backends.postgres import parse_address as postgres_place
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from suite.sizes import sized
from support.tiered_logs import SPEC, Cloud


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


KINDS = ["memory", "sqlite", "segments", *sized(ci=[], long=["mysql", "postgresql"])]
"""The databases are asked in the long size; their machine and their kills are not left out in either."""


@pytest.fixture(params=KINDS)
def open_log(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock, cloud: Cloud
) -> Iterator[Callable[[], Log]]:
    """A function that opens the same log anew each time it is called."""
    memory = MemoryBackend(clock)
    stores: list[LogStore] = []

    def open_one() -> Log:
        kinds: dict[str, Callable[[], Any]] = {
            "memory": lambda: memory,
            "sqlite": lambda: SqliteBackend(tmp_path / "log.db", clock),
            "segments": lambda: SegmentsBackend(tmp_path / "logs", clock, segment_bytes=3000),
            "mysql": lambda: MysqlBackend(parse_address(request.getfixturevalue("database")), clock),
            "postgresql": lambda: PostgresBackend(postgres_place(request.getfixturevalue("postgres_database")), clock),
        }
        stores.append(LogStore(kinds[request.param](), clock, open_objects=cloud.open))
        return stores[-1].log(SPEC)

    yield open_one
    for store in stores:
        store.close()
