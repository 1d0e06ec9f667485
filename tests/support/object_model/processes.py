"""Writers, the compactor and the reader of :mod:`support.object_model.commits`, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.object_model.commits import ALL_GUARDS, FENCE, Bounds, Bucket, Entry, Epoch, Guards, Layout, World
from support.object_model.search import Violation

Steps = Iterator[tuple[str, World | Violation]]
WRITERS = "AB"


class Protocol:
    """All steps that may come next, under *bounds* and with *guards*."""

    def __init__(self, bounds: Bounds, guards: Guards = ALL_GUARDS) -> None:
        self._bounds, self._guards = bounds, guards
        self._bucket = Bucket(bounds, guards)

    def steps(self, world: World) -> Steps:
        for label, after in self._all_steps(world):
            yield label, after if isinstance(after, Violation) else self._reduced(after)

    def _all_steps(self, world: World) -> Steps:
        yield from self._bucket.late(world)
        for index in range(len(world.writers)):
            yield from self.writer_steps(world, index)
        yield from self._compactor_steps(world)
        yield from self._reader_steps(world)

    def _reduced(self, world: World) -> World:
        """The same world without what no later step can tell apart."""
        if len(world.epochs) == self._bounds.epochs and ("idle",) in world.writers:
            pairs = zip(world.writers, world.serials, strict=True)
            world = world._replace(serials=tuple(-1 if local == ("idle",) else serial for local, serial in pairs))
        if world.layout.version < self._bounds.layouts:
            return world
        if world.compactor != ("idle",):
            world = world._replace(compactor=("idle",))
        taken = len(world.names)
        if any(isinstance(item, Entry) and world.gone < item.number <= taken for item in world.sent):
            kept = (item for item in world.sent if not isinstance(item, Entry) or not world.gone < item.number <= taken)
            world = world._replace(sent=frozenset(kept))
        return world

    def writer_steps(self, world: World, index: int) -> Steps:
        """What the writer of that index may do next."""
        local = world.writers[index]
        yield from getattr(self, f"_{local[0]}")(world, index, *local[1:])
        if local[0] not in {"idle", "seek", "walk"}:
            yield f"{WRITERS[index]} restarts", _now(world, index, "idle")

    # Takeover.

    def _idle(self, world: World, index: int) -> Steps:
        epoch = len(world.epochs) + 1
        if epoch > self._bounds.epochs:
            return
        name = WRITERS[index]
        object_ = Epoch(epoch, name)
        won = self._bucket.put_epoch(world, object_)
        yield f"{name} PUT epochs/{epoch}: 200", _now(won, index, "seek", epoch)
        for lost in self._bucket.lose(world, object_):
            yield f"{name} PUT epochs/{epoch}: no answer", _now(lost, index, "asked", epoch)

    def _asked(self, world: World, index: int, epoch: int) -> Steps:
        name = WRITERS[index]
        if len(world.epochs) < epoch:
            yield f"{name} GET epochs/{epoch}: 404, it gives up", _now(world, index, "idle")
        elif world.epochs[epoch - 1] == name:
            yield f"{name} GET epochs/{epoch}: its own", _now(world, index, "seek", epoch)
        else:
            yield f"{name} GET epochs/{epoch}: of another", _now(world, index, "idle")

    def _seek(self, world: World, index: int, epoch: int) -> Steps:
        for number in range(1, len(world.names) + 1):
            label = f"{WRITERS[index]} begins at commits/{number} (from memory, a listing or the layout)"
            yield label, _now(world, index, "walk", epoch, number, None, 0)

    def _walk(
        self, world: World, index: int, epoch: int, number: int, previous: tuple[int, str] | None, last: int
    ) -> Steps:
        for entry in self._bucket.get(world, number):
            label = f"{WRITERS[index]} GET commits/{number}: {entry or 404}"
            if entry is None and previous is None:
                start = world.layout.start
                yield f"{label}, starts at {start}", _now(world, index, "walk", epoch, start, None, 0)
            elif entry is None and not self._guards.fence:
                yield label, _now(world, index, "active", epoch, number, previous, last)
            elif entry is None:
                fence = Entry(number, epoch, FENCE, previous or (0, ""), last)
                yield label, _now(world, index, "fence", epoch, fence)
            elif entry.epoch > epoch:
                yield f"{label}, fenced", _now(world, index, "idle")
            elif entry.identity == (epoch, FENCE):
                yield label, _now(world, index, "fenced", epoch, entry)
            else:
                yield label, _now(world, index, "walk", epoch, number + 1, entry.identity, entry.last)

    def _fence(self, world: World, index: int, epoch: int, fence: Entry) -> Steps:
        for answer, after in self._bucket.put(world, fence):
            label = f"{WRITERS[index]} PUT commits/{fence.number} (fence of epoch {epoch}): {answer}"
            if answer == "200":
                yield label, _now(after, index, "fenced", epoch, fence)
            else:
                yield label, _now(after, index, "walk", epoch, fence.number, fence.previous, fence.last)

    def _fenced(self, world: World, index: int, epoch: int, fence: Entry) -> Steps:
        start = world.layout.start
        label = f"{WRITERS[index]} looks at the layout: commits begin at {start}"
        if start <= fence.number or not self._guards.layout_after_fence:
            yield f"{label}, it is the writer", _take_over(world, index, fence)
        else:
            yield f"{label}, its fence does not count", _now(world, index, "walk", epoch, start, None, 0)

    # Commits.

    def _active(self, world: World, index: int, epoch: int, number: int, previous: tuple[int, str], last: int) -> Steps:
        serial = world.serials[index]
        if serial >= self._bounds.commits[index]:
            return
        serials = (*world.serials[:index], serial + 1, *world.serials[index + 1 :])
        entry = Entry(number, epoch, f"{WRITERS[index]}{serial + 1}", previous, last + 1)
        world = world._replace(serials=serials)
        if self._guards.one_at_a_time:
            yield from self._put(world, index, epoch, entry)
            return
        second = Entry(number + 1, epoch, entry.body + "+", entry.identity, last + 2)
        both = world._replace(sent=world.sent | {entry, second})
        label = f"{WRITERS[index]} PUT commits/{number} ({entry}) and commits/{number + 1} ({second}), side by side"
        yield label, _now(both, index, "pair", epoch, entry, second)

    def _put(self, world: World, index: int, epoch: int, entry: Entry) -> Steps:
        for answer, after in self._bucket.put(world, entry):
            label = f"{WRITERS[index]} PUT commits/{entry.number} ({entry}): {answer}"
            if answer != "200":
                yield label, _now(after, index, "get", epoch, entry)
            elif self._guards.layout_after_create:
                yield label, _now(after, index, "created", epoch, entry)
            else:
                yield label, _confirm(after, index, entry)

    def _get(self, world: World, index: int, epoch: int, entry: Entry) -> Steps:
        for there in self._bucket.get(world, entry.number):
            label = f"{WRITERS[index]} GET commits/{entry.number}: {there or 404}"
            if there is None:
                yield f"{label}, tries again", _now(world, index, "put", epoch, entry)
                unsure = ("active", epoch, entry.number, entry.previous, entry.last - 1)
                yield f"{label}, tells its caller that it failed", _now(world, index, *unsure)
            elif there == entry or (not self._guards.whole_bytes and self._looks_own(there, index, epoch)):
                yield f"{label}, its own", _now(world, index, "created", epoch, entry)
            elif not self._guards.fence and there.epoch <= epoch:
                caught_up = ("active", epoch, entry.number + 1, there.identity, entry.last - 1)
                yield f"{label}, goes on after it", _now(world, index, *caught_up)
            else:
                yield f"{label}, fenced", _now(world, index, "idle")

    def _looks_own(self, there: Entry, index: int, epoch: int) -> bool:
        return there.epoch == epoch and there.body.startswith(WRITERS[index])

    def _created(self, world: World, index: int, epoch: int, entry: Entry) -> Steps:
        start = world.layout.start
        label = f"{WRITERS[index]} looks at the layout: commits begin at {start}"
        if start <= entry.number:
            yield f"{label}, confirms {entry}", _confirm(world, index, entry)
        else:
            yield f"{label}, fenced", _now(world, index, "idle")

    def _pair(self, world: World, index: int, epoch: int, first: Entry, second: Entry) -> Steps:
        if len(world.epochs) > epoch:
            yield f"{WRITERS[index]} GET epochs/{epoch + 1}: it was replaced", _now(world, index, "idle")
        elif second in world.names:
            label = f"{WRITERS[index]} hears that PUT commits/{second.number} is done, confirms {second}"
            yield label, _now(world._replace(promised=world.promised | {second}), index, "waits", first)

    def _waits(self, world: World, index: int, first: Entry) -> Steps:
        yield from ()

    # The others.

    def _compactor_steps(self, world: World) -> Steps:
        local = world.compactor
        if local[0] == "idle":
            if world.layout.version < self._bounds.layouts and len(world.names) > 1:
                label = f"compactor looks at the layout: version {world.layout.version}"
                yield label, world._replace(compactor=("look", *world.layout))
        elif local[0] == "look":
            yield from self._seal(world, Layout(*local[1:]))
        else:
            yield from self._publish(world, Layout(*local[1:]))

    def _seal(self, world: World, layout: Layout) -> Steps:
        newest = len(world.names) - self._guards.keep_newest
        for end in range(layout.start, newest + 1):
            if any(number <= world.gone for number in range(layout.start, end + 1)):
                continue  # the layout has moved on since, so that the create below will be refused
            label = f"compactor seals commits/{layout.start} to {end}"
            yield label, world._replace(compactor=("publish", layout.version + 1, end + 1))

    def _publish(self, world: World, layout: Layout) -> Steps:
        if not self._guards.layout_before_delete and world.gone < layout.start - 1:
            label = f"compactor deletes commits up to {layout.start - 1}"
            yield label, world._replace(gone=layout.start - 1)
            return
        rests = world._replace(compactor=("idle",))
        label = f"compactor PUT layout/{layout.version} (commits begin at {layout.start})"
        if layout.version == world.layout.version + 1:
            yield f"{label}: 200", self._bucket.put_layout(rests, layout)
            for lost in self._bucket.lose(rests, layout):
                yield f"{label}: no answer", lost
        else:
            yield f"{label}: 412", rests

    def _reader_steps(self, world: World) -> Steps:
        """A reader at any place. What it reads at a place from ``gone`` on is the chain's, so that only these count.

        The start of the layout only grows: what lies below it when it is read will be discarded when it is looked at.
        """
        for number in range(1, world.gone + 1):
            chain = world.names[number - 1]
            compacted = number < world.layout.start
            for entry in self._bucket.get(world, number):
                label = f"reader GET commits/{number}: {entry or 404}"
                if entry is None and not compacted:
                    yield label, Violation(f"{chain} is lost: no sealed object has it")
                elif entry is not None and entry != chain and not (compacted and self._guards.layout_after_read):
                    yield label, Violation(f"{entry} is delivered, but the chain has {chain}")


def recovers(world: World) -> bool:
    """True if a new writer that is left alone takes over in *world*, commits, and gets its confirmation."""
    alone = Protocol(Bounds(commits=(1, 0), epochs=len(world.epochs) + 1, layouts=0, losses=0))
    worlds = [world._replace(writers=(("idle",),), serials=(0,), sent=frozenset(), losses=0)]
    for known in worlds:
        for label, after in alone.writer_steps(known, 0):
            if isinstance(after, Violation):
                return False
            if "confirms" in label:
                return True
            if "restarts" not in label:
                worlds.append(after)
    return False


def _now(world: World | Violation, index: int, *local: Any) -> World | Violation:
    if isinstance(world, Violation):
        return world
    return world._replace(writers=(*world.writers[:index], local, *world.writers[index + 1 :]))


def _take_over(world: World, index: int, fence: Entry) -> World | Violation:
    """*fence* makes the writer that of its epoch: from now on no commit of an older one may enter the chain."""
    if fence not in world.names:
        return Violation(f"{WRITERS[index]} is the writer of epoch {fence.epoch}, but its fence is not in the chain")
    return _now(world, index, "active", fence.epoch, fence.number + 1, fence.identity, fence.last)


def _confirm(world: World | Violation, index: int, entry: Entry) -> World | Violation:
    """*entry* is confirmed to the caller: from now on it must be what the chain has."""
    if isinstance(world, Violation):
        return world
    there = world.names[entry.number - 1] if entry.number <= len(world.names) else None
    if there != entry:
        return Violation(f"{entry} was confirmed as commits/{entry.number}, but the chain has {there}")
    return _now(world, index, "active", entry.epoch, entry.number + 1, entry.identity, entry.last)
