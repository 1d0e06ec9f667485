"""An anchoring road in memory or in a folder, wired as the node wires it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import (
    AnchorIndex,
    BatchWriter,
    CutLimits,
    Journal,
    LocalCas,
    MemoryLedger,
    Observer,
    Replay,
    prove,
    replay,
)
from millstream.core.clock import VirtualClock
from millstream.testing.cas import FaultyCas


@dataclass
class Road:
    folder: Path
    engine: sa.Engine
    cas: LocalCas
    faults: FaultyCas
    ledger: MemoryLedger
    index: AnchorIndex
    journal: Journal
    observer: Observer
    writer: BatchWriter

    def prove(self, message_id: int, log: str = "weather") -> bytes:
        return prove(log, message_id, index=self.index, cas=self.cas, ledger=self.ledger, journal=self.journal)

    def replay(self) -> Replay:
        return replay(self.cas, self.ledger, self.index)

    def anchor_strings(self) -> list[str]:
        return [entry.anchor_string for entry in self.ledger.entries()]


MakeRoad = Callable[..., Road]


@pytest.fixture
def make_road(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeRoad]:
    """Builds a road on a folder under the test's own; the same name is the same database and the same files.

    Nothing waits for the disk: these tests end processes, if at all, not machines.
    """
    monkeypatch.setattr("os.fsync", lambda _: None)
    roads: list[Road] = []

    def make(name: str = "node", ledger: MemoryLedger | None = None, limits: CutLimits | None = None) -> Road:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        engine = sa.create_engine(f"sqlite:///{folder / 'node.db'}")
        sa.event.listen(engine, "connect", _hurry)
        cas, ledger = LocalCas(folder / "cas"), ledger or MemoryLedger(VirtualClock())
        faults, index, journal = FaultyCas(cas), AnchorIndex(engine), Journal(engine)
        observer = Observer(index, faults, ledger)
        writer = BatchWriter(journal, faults, ledger, observer, limits=limits)
        roads.append(Road(folder, engine, cas, faults, ledger, index, journal, observer, writer))
        return roads[-1]

    yield make
    for road in roads:
        road.engine.dispose()


@pytest.fixture
def road(make_road: MakeRoad) -> Road:
    return make_road()


def _hurry(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
