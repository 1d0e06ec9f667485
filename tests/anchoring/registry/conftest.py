"""A registry of several instances on one database: SQLite, and real servers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import MemoryCas, MemoryLedger
from millstream.anchoring.registry import (
    DidRegistry,
    OperationQueueSettings,
    OperationState,
    ProtocolVersions,
    RegistryDatabase,
    RegistryParameters,
)
from millstream.anchoring.sidetree import Operation
from millstream.core.canonical import canonical_json
from millstream.core.clock import VirtualClock
from millstream.core.database_server import open_server
from millstream.queue import WorkQueue
from millstream.testing.cas import FaultyCas
from support.server_databases import new_database


def request_of(operation: Operation) -> bytes:
    return canonical_json(operation.request)


class Fleet:
    """What instances share, and a way to make instances."""

    def __init__(self, engine: sa.Engine, clock: VirtualClock) -> None:
        self.clock = clock
        self.engine = engine
        self.database = RegistryDatabase(engine, clock)
        self.files = MemoryCas()
        self.cas = FaultyCas(self.files)
        self.ledger = MemoryLedger(clock)
        self.broker: WorkQueue | None = None
        self.settings: dict[str, Any] = {}
        self.queue_settings: dict[str, Any] = {"retry_first": 0.0, "max_retries": 2}
        self.versions = ProtocolVersions()

    def instance(self, name: str = "one") -> DidRegistry:
        return DidRegistry(
            self.database,
            self.cas,
            self.ledger,
            instance=name,
            settings=RegistryParameters(queue=OperationQueueSettings(**self.queue_settings), **self.settings),
            versions=self.versions,
            broker=self.broker,
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many operations stand in each state that any stands in."""
        return {state: count for state, count in self.instance("asking").store.counts().items() if count}

    def sql(self, text: str) -> None:
        if self.engine.dialect.name == "postgresql":
            text = re.sub(r"X'(\w*)'", r"'\\\\x\1'", text)
        with self.engine.begin() as connection:
            connection.execute(sa.text(text))


def states(registry: DidRegistry, *operations: str) -> list[OperationState]:
    found = [registry.store.status(operation) for operation in operations]
    return [status.state for status in found if status is not None]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def sqlite_fleet(tmp_path: Path, clock: VirtualClock) -> Iterator[Fleet]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}", connect_args={"timeout": 30})
    yield Fleet(engine, clock)
    engine.dispose()


@pytest.fixture
def mariadb_fleet(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[Fleet]:
    with _fleet_on(str(request.getfixturevalue("mariadb")), clock) as fleet:
        yield fleet


@pytest.fixture
def postgresql_fleet(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[Fleet]:
    with _fleet_on(str(request.getfixturevalue("postgresql")), clock) as fleet:
        yield fleet


@contextlib.contextmanager
def _fleet_on(server: str, clock: VirtualClock) -> Iterator[Fleet]:
    with new_database(server, "registry") as url:
        engine = open_server(url)
        yield Fleet(engine, clock)
        engine.dispose()


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    made: Fleet = request.getfixturevalue(f"{request.param}_fleet")
    return made


@pytest.fixture
def submit() -> Callable[..., list[str]]:
    """submit(registry, *operations) → their ids."""

    def submit_all(registry: DidRegistry, *operations: Operation) -> list[str]:
        outcomes = registry.acceptance.submit_many([request_of(operation) for operation in operations])
        return [outcome.status.id for outcome in outcomes if outcome.status is not None]

    return submit_all
