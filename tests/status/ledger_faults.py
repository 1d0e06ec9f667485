"""Faults of the ledger of anchors, on a :class:`faulty_node.FaultyNode`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.testing.batches import CONFIG, make_batch

if TYPE_CHECKING:
    from faulty_node import FaultyNode

_HOUR = 3600


@contextlib.contextmanager
def ledger_stuck(desk: FaultyNode) -> Iterator[None]:
    desk.node.anchoring.batch_writer.add("weather", [make_batch([90_000])], config=CONFIG)
    desk.clock.advance(2 * _HOUR)
    yield
    desk.node.anchoring.batch_writer.cut(force=True)


@contextlib.contextmanager
def ledger_key_lost(desk: FaultyNode) -> Iterator[None]:
    with desk.moved(desk.folder / "keys" / "anchors.json"):
        desk.node.anchoring.batch_writer.add("weather", [make_batch([91_000])], config=CONFIG)
        desk.node.anchoring.batch_writer.cut(force=True)
        yield
    desk.command("anchor", "checkpoint")
