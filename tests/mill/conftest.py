"""A small world for the mill: stores in memory, a manifest in a file, a queue on a log in memory, a virtual clock."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.core.retry import RetryPolicy
from millstream.log import LogSpec, open_store
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore, MemoryStore, Store

WRITES = ("create_space", "delete_space", "put", "set_properties", "copy", "delete")


class Sealed:
    """A store that fails the test on any write."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in WRITES:
            raise AssertionError(f"{name} was called on a source")
        return getattr(self._store, name)


class World:
    """Three stores "1", "2" and "3", a manifest and queues; shortcuts to fill them and to look into them."""

    def __init__(self, engine: sa.Engine, clock: VirtualClock, stores: Mapping[str, Store] | None = None) -> None:
        self.clock, self.engine = clock, engine
        self.stores: dict[str, Store] = dict(stores or {name: MemoryStore(name, clock=clock) for name in "123"})
        self.manifest = Manifest(engine, clock)
        self.log_store = open_store("memory://", clock=clock)
        self._queues: dict[str, LogWorkQueue] = {}
        self._providers: ConfiguredStores | None = None

    @property
    def providers(self) -> ConfiguredStores:
        return ConfiguredStores(self.stores, self.clock, RetryPolicy(attempts=4, jitter=0))

    def queue(self, name: str = "duplication-low") -> LogWorkQueue:
        if name not in self._queues:
            self._queues[name] = LogWorkQueue(self.log_store.log(LogSpec(name)), self.clock)
        return self._queues[name]

    def put(self, place: ItemRef, body: bytes = b"body", *, record: bool = True, **properties: str) -> str:
        """Put bytes at *place*, by default with their manifest row; their SHA-256."""
        self.stores[place.store].create_space(place.space)
        info = self.stores[place.store].put(place.space, place.content_id, io.BytesIO(body), properties=properties)
        if record:
            self.record(place, info.checksum(), size=len(body))
        return hashlib.sha256(body).hexdigest()

    def record(self, place: ItemRef, sha256: str | None, *, size: int = 0, deleted: bool = False) -> None:
        event = ManifestEvent(
            place.store, place.space, place.content_id, self.clock.now(), sha256, size, deleted=deleted
        )
        self.manifest.writer.record([event])

    def read(self, place: ItemRef) -> bytes:
        with self.stores[place.store].open(place.space, place.content_id) as file:
            return file.read()

    def has(self, place: ItemRef) -> bool:
        return self.providers.find(place) is not None

    def seal(self, store: str) -> None:
        """From now on, any write to *store* fails the test."""
        if not isinstance(self.stores[store], Sealed):
            self.stores[store] = Sealed(self.stores[store])  # type: ignore[assignment]

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self.log_store.close()
        self.engine.dispose()


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes worlds, each on a database of its own."""
    made: list[World] = []

    def make(stores: Mapping[str, Store] | None = None) -> World:
        engine = sa.create_engine(f"sqlite:///{tmp_path / f'node-{len(made)}.db'}")
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        made.append(World(engine, VirtualClock(), stores))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world()


@pytest.fixture
def three_stores(tmp_path: Path) -> Path:
    """The folder of a node whose policy copies every space from the store "one" to "two" and "three", all empty."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    stores = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}"\n' for name in ("one", "two", "three")]
    (folder / "millstream.toml").write_text("\n".join(stores))
    (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
    policy = {"defaultPolicies": [{"srcStoreId": "one", "destStoreId": copy} for copy in ("two", "three")]}
    (folder / "policies" / "me-duplication-policy.json").write_text(json.dumps(policy))
    for name in ("one", "two", "three"):
        LocalStore(tmp_path / name)
    return folder
