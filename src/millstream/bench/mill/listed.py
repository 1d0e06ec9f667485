"""A loop of the producer over many listed items without a change, in a process of its own whose memory is measured.

:func:`main` prints the seconds that the loop took, those of a processor, and the most memory (MiB) held. The stores
only list; the manifest is a real one.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import sqlalchemy as sa

from millstream.bench.mill.fixture import COPY, PAIR, SOURCE
from millstream.core.clock import SystemClock
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.stores import Entry, MemoryStore, Store

SPACE = "many"
AT = 1_700_000_000_000_000
CHUNK = 50_000


class ListedStore(MemoryStore):
    """A store whose only space lists *items* items of 1,000 bytes, and has none of them."""

    def __init__(self, name: str, items: int) -> None:
        super().__init__(name)
        self.create_space(SPACE)
        self._items = items

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:  # noqa: ARG002
        """The listing; *space* and *prefix* are not looked at."""
        first = int(after[1:]) + 1 if after else 0
        return [Entry(_name(number), 1000, AT) for number in range(first, min(first + limit, self._items))]


def prepare(folder: Path, items: int) -> None:
    """Make the manifest of both stores."""
    engine = _engine(folder)
    manifest = Manifest(engine)
    for store in (SOURCE, COPY):
        for first in range(0, items, CHUNK):
            numbers = range(first, min(first + CHUNK, items))
            manifest.writer.record([ManifestEvent(store, SPACE, _name(n), AT, f"{n:064x}", 1000) for n in numbers])
    engine.dispose()


def loop(folder: Path, items: int) -> tuple[float, float, float]:
    """The seconds that the loop takes, those of a processor, and the most memory of this process so far (MiB)."""
    clock = SystemClock()
    stores = {name: cast(Store, ListedStore(name, items)) for name in (SOURCE, COPY)}
    engine = _engine(folder)
    providers, manifest = ConfiguredStores(stores, clock), Manifest(engine)
    began, used = clock.monotonic(), _processor_seconds()
    plan = plan_space_duplication(providers, manifest, PAIR, SPACE, None, record=True)
    seconds = clock.monotonic() - began
    assert (plan.copied, plan.same, plan.tasks) == (items, items, 0), "nothing has changed"
    engine.dispose()
    return seconds, _processor_seconds() - used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _engine(folder: Path) -> sa.Engine:
    return sa.create_engine(f"sqlite:///{folder / 'listed.db'}")


def _name(number: int) -> str:
    return f"i{number:09}"


def main() -> None:
    """Run the loop over the folder and the number of items that the command line names."""
    print(*loop(Path(sys.argv[1]), int(sys.argv[2])))
