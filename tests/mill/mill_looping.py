"""Looping producers as cron runs them, on a small world of the mill, and what is put into it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from millstream.core.documents import FileDocument
from millstream.mill.manifest import ManifestEvent
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.producers.bits import BitMorsel, BitProducer
from millstream.mill.producers.duplication import DuplicationMorsel, DuplicationProducer
from millstream.mill.producers.producer_loop import ProducerLoop
from millstream.mill.producers.state import StateDocument
from millstream.mill.tasks import Duplicate, decode_task
from millstream.queue import LogWorkQueue

MONTH = 30 * 24 * 3600 * 1_000_000
TO_2, TO_3 = Pair("1", "2"), Pair("1", "3")


class Producer:
    """A duplication producer on a world's queue, made anew for each run as cron does."""

    def __init__(self, world: Any, folder: Path, policies: dict[str, Policy], **more: Any) -> None:
        self.world, self.queue, self.policies = world, world.queue(), Policies(policies)
        self.file = StateDocument(FileDocument(folder / "state" / "duplication.json"), DuplicationMorsel)
        self.most: int = more.pop("most", 10**6)
        self.frequency: int = more.pop("frequency", MONTH)
        self.more = more
        self.producer: DuplicationProducer

    def run(self) -> Any:
        world = self.world
        self.producer = DuplicationProducer(
            lambda: self.policies, world.providers, world.manifest, self.queue, **self.more
        )
        limits = {"frequency": self.frequency, "most": self.most}
        return ProducerLoop(self.file, self.producer, self.queue, world.clock, **limits).run()

    def taken(self) -> list[Duplicate]:
        """What is on the queue, taken off it."""
        return [task for task in take(self.queue) if isinstance(task, Duplicate)]


def take(queue: LogWorkQueue) -> list[Any]:
    leases = queue.lease(10**6, visibility=600)
    queue.ack(leases)
    return [decode_task(lease.body) for lease in leases]


def fill(world: Any, store: str, space: str, names: list[str]) -> None:
    world.stores[store].create_space(space)
    for name in names:
        world.stores[store].put(space, name, io.BytesIO(b"body"))


def stale(world: Any, space: str, count: int, store: str = "2") -> list[str]:
    """Copies whose originals were deleted, as the manifest says."""
    names = [f"stale {number:03d}" for number in range(count)]
    fill(world, store, space, names)
    world.manifest.writer.record([ManifestEvent("1", space, name, world.clock.now(), deleted=True) for name in names])
    return names


def numbered(count: int) -> list[str]:
    return [f"{number:04d}" for number in range(count)]


def one_policy(*pairs: Pair) -> dict[str, Policy]:
    return {"me": Policy("me", {}, pairs or (TO_2,))}


class Bits(Producer):
    """A bit producer; its queue is ``bits`` and its reports are on ``reports``."""

    def __init__(self, world: Any, folder: Path, **more: Any) -> None:
        super().__init__(world, folder, {}, **more)
        self.queue, self.reports = world.queue("bits"), world.queue("reports")
        self.bit_file = StateDocument(FileDocument(folder / "state" / "bits.json"), BitMorsel)

    def run(self) -> Any:
        world = self.world
        producer = BitProducer(world.providers, world.manifest, self.queue, self.reports, world.clock, **self.more)
        limits = {"frequency": self.frequency, "most": self.most}
        return ProducerLoop(self.bit_file, producer, self.queue, world.clock, **limits).run()
