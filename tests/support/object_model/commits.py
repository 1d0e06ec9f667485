"""The protocol of commits, takeovers and compaction: what the bucket holds, and what each request may do to it.

A step is the effect of one request. The network is as bad as it can be: a PUT that was ever sent may take effect at
any later moment, as often as it likes (``sent``), an answer may be lost, a listing may be stale, and a process may
stop between any two steps. Only what servers promise is relied on: a create-only PUT is atomic, and a GET sees every
PUT that took effect before it.

``names`` has the object that was created first under each number: the chain. Numbers up to ``gone`` were compacted,
so their names are lawless: they hold what they held, or nothing, or whatever of that number was ever sent. That
covers deletions that are late, repeated or never done, and stale writers that create such a name again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.object_model.search import Violation

FENCE = "FENCE"


class Entry(NamedTuple):
    """The object ``commits/<number>``: ``previous`` stands for the hash of its predecessor, ``last`` is its last id."""

    number: int
    epoch: int
    body: str
    previous: tuple[int, str]
    last: int

    @property
    def identity(self) -> tuple[int, str]:
        return (self.epoch, self.body)

    def __str__(self) -> str:
        return f"{self.body} of epoch {self.epoch}"


class Epoch(NamedTuple):
    """The object ``epochs/<number>``."""

    number: int
    holder: str


class Layout(NamedTuple):
    """The object ``layout/<version>``: commits begin at ``start``; what lies before is in sealed objects."""

    version: int
    start: int


class World(NamedTuple):
    """A state of everything. Processes are tuples: a name of what they do next, and what they know."""

    names: tuple[Entry | None, ...]
    gone: int
    layout: Layout
    epochs: tuple[str, ...]
    sent: frozenset[Entry | Epoch | Layout]
    writers: tuple[tuple[Any, ...], ...]
    serials: tuple[int, ...]
    compactor: tuple[Any, ...]
    promised: frozenset[Entry]
    losses: int


@dataclass(frozen=True)
class Bounds:
    """How far a search goes: commits tried by each writer, epochs, versions of the layout, answers that are lost."""

    commits: tuple[int, int] = (2, 1)
    epochs: int = 3
    layouts: int = 1
    losses: int = 1


@dataclass(frozen=True)
class Guards:
    """What makes the protocol safe; a guard that is off is left out of it."""

    layout_after_create: bool = True
    """A writer believes its create only if the layout, looked at after it, leaves its number alone."""
    whole_bytes: bool = True
    """An object is one's own only if all of its bytes are; the writer's nonce is not enough."""
    fence: bool = True
    """A successor creates a fence at the first free number before it reads where the log ends."""
    layout_after_fence: bool = True
    """A fence counts only if the layout, looked at after it was created, leaves its number alone."""
    keep_newest: bool = True
    """The newest commit is never compacted."""
    layout_before_delete: bool = True
    """The layout is created before the first commit is deleted."""
    layout_after_read: bool = True
    """A reader discards what the layout, looked at after the read, says was compacted."""
    one_at_a_time: bool = True
    """A writer sends a commit only when the one before it is confirmed."""


ALL_GUARDS = Guards()


def first_world(*, shared: bool = False) -> World:
    """A log whose first writer, A, has the first epoch and has created its fence; *shared*: so does B, in A's epoch."""
    fence = Entry(1, 1, FENCE, (0, ""), 0)
    active = ("active", 1, 2, fence.identity, 0)
    writers = (active, active if shared else ("idle",))
    return World((fence,), 0, Layout(0, 1), ("A",), frozenset(), writers, (0, 0), ("idle",), frozenset(), 0)


class Bucket:
    """What requests may do to a world: each method yields every answer with the world after it."""

    def __init__(self, bounds: Bounds, guards: Guards) -> None:
        self._bounds, self._guards = bounds, guards

    def get(self, world: World, number: int) -> list[Entry | None]:
        """Every answer that GET ``commits/<number>`` may have."""
        there = world.names[number - 1] if number <= len(world.names) else None
        if number > world.gone:
            return [there]
        others = sorted(entry for entry in world.sent if isinstance(entry, Entry) and entry.number == number)
        return [None, there, *others]

    def put(self, world: World, entry: Entry) -> Iterator[tuple[str, World | Violation]]:
        """Every answer that the create-only PUT of *entry* may have; without one it may take effect later, or never."""
        sent = self._send(world, entry)
        if world.losses < self._bounds.losses:
            yield "no answer", sent._replace(losses=world.losses + 1)
        if entry.number <= world.gone:
            yield "200", sent
            yield "412", world
        elif entry.number <= len(world.names) and world.names[entry.number - 1] is not None:
            yield "412", world
        else:
            yield "200", self.land(world, entry)

    def lose(self, world: World, item: Epoch | Layout) -> Iterator[World]:
        """The PUT of *item* gets no answer."""
        if world.losses < self._bounds.losses:
            yield world._replace(sent=world.sent | {item}, losses=world.losses + 1)

    def _send(self, world: World, entry: Entry) -> World:
        if entry.number <= len(world.names) and world.names[entry.number - 1] == entry:
            return world
        return world._replace(sent=world.sent | {entry})

    def land(self, world: World, entry: Entry) -> World | Violation:
        """*entry* takes its free name, and with that its place in the chain."""
        names = list(world.names) + [None] * (entry.number - len(world.names))
        names[entry.number - 1] = entry
        after = world._replace(names=tuple(names), sent=world.sent - {entry})
        return self._broken(after, entry) or after

    def _broken(self, world: World, entry: Entry) -> Violation | None:
        before = world.names[entry.number - 2]
        after = world.names[entry.number] if entry.number < len(world.names) else None
        if after in world.promised and after is not None and after.previous != entry.identity:
            return Violation(f"{after} was confirmed as commits/{after.number}, but {entry} is before it in the chain")
        if not self._guards.one_at_a_time:
            return None  # what does not continue the chain is ignored by all
        if before is None:
            return Violation(f"commits/{entry.number} is beyond a gap")
        if entry.epoch < before.epoch or entry.previous != before.identity:
            return Violation(f"commits/{entry.number} ({entry}) does not continue the chain after {before}")
        if entry.last != before.last + (entry.body != FENCE):
            what = f"commits/{entry.number} ({entry}) stores the id {entry.last}"
            return Violation(f"{what} after {before}, which ended at {before.last}")
        return None

    def put_layout(self, world: World, layout: Layout) -> World:
        """The layout takes its free name: commits before its start may be deleted from now on."""
        sent = frozenset(item for item in world.sent if not isinstance(item, Layout) or item.version > layout.version)
        return world._replace(layout=layout, gone=max(world.gone, layout.start - 1), sent=sent)

    def put_epoch(self, world: World, epoch: Epoch) -> World:
        sent = frozenset(item for item in world.sent if not isinstance(item, Epoch) or item.number > epoch.number)
        return world._replace(epochs=(*world.epochs, epoch.holder), sent=sent)

    def late(self, world: World) -> Iterator[tuple[str, World | Violation]]:
        """Everything that was sent and may take effect only now."""
        for item in sorted(world.sent, key=repr):
            if isinstance(item, Epoch):
                if item.number == len(world.epochs) + 1:
                    yield f"late: PUT epochs/{item.number} of {item.holder} takes effect", self.put_epoch(world, item)
            elif isinstance(item, Layout):
                if item.version == world.layout.version + 1:
                    yield f"late: PUT layout/{item.version} takes effect", self.put_layout(world, item)
            elif item.number > len(world.names) or (item.number > world.gone and world.names[item.number - 1] is None):
                yield f"late: PUT commits/{item.number} ({item}) takes effect", self.land(world, item)
