"""A registry of several instances on one database: SQLite, and a real MariaDB."""

from __future__ import annotations

import itertools
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
from millstream.queue import WorkQueue
from millstream.testing.cas import FaultyCas

_databases = itertools.count(1)


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
    server = str(request.getfixturevalue("mariadb")).replace("mysql://", "mysql+pymysql://")
    name = f"registry_{next(_databases)}_{id(clock)}"
    admin = sa.create_engine(server)
    with admin.begin() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine = sa.create_engine(sa.make_url(server).set(database=name))
    yield Fleet(engine, clock)
    engine.dispose()
    with admin.begin() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name}"))
    admin.dispose()


@pytest.fixture(params=["sqlite", "mariadb"])
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
