"""Small states with versions on object storage, whose old versions are deleted: every step of two callers.

``states/<key>/<version>`` is created only where it does not exist. Versions are deleted by blocks: first the mark
``gone/<block>`` is created, once a version after the block exists. A version of a block that has a mark is lawless: it
holds what it held, or nothing, or whatever was ever sent to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.object_model.search import Violation

BLOCK = 2
"""Versions of a block (the real protocol has more)."""


class Version(NamedTuple):
    """The object ``states/<key>/<number>`` and who wrote it (``""``: version 0, which was never written)."""

    number: int
    author: str


class Store(NamedTuple):
    """A state of everything: what was created first, how many blocks have marks, what may still arrive, the callers."""

    versions: tuple[str, ...]
    marks: int
    sent: frozenset[Version]
    callers: tuple[tuple[Any, ...], ...]
    calls: tuple[int, ...]
    losses: int


@dataclass(frozen=True)
class StateGuards:
    mark_after_create: bool = True
    """A caller looks for the mark of the block after its create."""
    mark_after_other: bool = True
    """A caller that finds another's version looks for the mark before it says that its own was refused."""
    mark_after_end: bool = True
    """A caller that finds no next version looks for the mark before it says that there is none."""


NEVER = Version(0, "")
Steps = Iterator[tuple[str, Store | Violation]]


def first_store(callers: int = 2) -> Store:
    return Store((), 0, frozenset(), (("idle", NEVER),) * callers, (0,) * callers, 0)


class StateProtocol:
    """What callers of ``get_state`` and ``put_state`` may do next, each *calls* times; *losses* PUTs get no answer."""

    def __init__(self, calls: int, losses: int, guards: StateGuards) -> None:
        self._calls, self._losses, self._guards = calls, losses, guards

    def steps(self, store: Store) -> Steps:
        for version in sorted(store.sent):
            if version.number == len(store.versions) + 1:
                yield f"late: PUT {version.number} of {version.author} takes effect", _land(store, version)
        if len(store.versions) > (store.marks + 1) * BLOCK:
            mark = store.marks + 1
            yield f"PUT gone/{mark}: its versions may be deleted", store._replace(marks=mark)
        for index, local in enumerate(store.callers):
            yield from getattr(self, f"_{local[0]}")(store, index, *local[1:])

    def _idle(self, store: Store, index: int, known: Version) -> Steps:
        if store.calls[index] < self._calls:
            calls = (*store.calls[:index], store.calls[index] + 1, *store.calls[index + 1 :])
            begun = store._replace(calls=calls)
            yield f"{index} calls put_state", _now(begun, index, "find", known, len(store.versions))

    def _find(self, store: Store, index: int, known: Version, newest: int) -> Steps:
        number = known.number + 1
        for there in _get(store, number):
            label = f"{index} GET {number}: {there.author if there else 404}"
            if there is not None:
                yield label, _now(store, index, "find", there, newest)
            elif self._guards.mark_after_end:
                yield label, _now(store, index, "end", known, newest)
            else:
                yield label, self._ended(store, index, known, newest)

    def _end(self, store: Store, index: int, known: Version, newest: int) -> Steps:
        block = _block(known.number + 1)
        if store.marks < block:
            yield f"{index} GET gone/{block}: 404", self._ended(store, index, known, newest)
        else:
            last = Version(block * BLOCK, "?")
            yield f"{index} GET gone/{block}: goes on after it", _now(store, index, "find", last, newest)

    def _ended(self, store: Store, index: int, known: Version, newest: int) -> Store | Violation:
        """The search says that *known* is the newest version; when it began, *newest* existed."""
        if known.number < newest:
            return Violation(f"get_state returns version {known.number}, but {newest} existed before it was called")
        chain = store.versions[known.number - 1] if known.number else ""
        if known.author != chain:
            return Violation(f"get_state returns {known.author} of version {known.number}, which is of {chain}")
        return _now(store, index, "put", known)

    def _put(self, store: Store, index: int, known: Version) -> Steps:
        own = Version(known.number + 1, f"{index}{'abc'[store.calls[index] - 1]}")
        label = f"{index} PUT {own.number}"
        if store.losses < self._losses:
            lost = store._replace(losses=store.losses + 1, sent=store.sent | {own})
            yield f"{label}: no answer", _now(lost, index, "reread", known, own)
        lawless = own.number <= store.marks * BLOCK
        if lawless or own.number > len(store.versions):
            after = store._replace(sent=store.sent | {own}) if lawless else _land(store, own)
            check = ("check", own) if self._guards.mark_after_create else None
            yield f"{label}: 200", _now(after, index, *check) if check else _written(after, index, own)
        if lawless or own.number <= len(store.versions):
            yield f"{label}: 412", _now(store, index, "reread", known, own)

    def _reread(self, store: Store, index: int, known: Version, own: Version) -> Steps:
        for there in _get(store, own.number):
            label = f"{index} GET {own.number}: {there.author if there else 404}"
            if there is None:
                yield f"{label}, tries again", _now(store, index, "put", known)
                yield f"{label}, fails", _now(store, index, "idle", known)
            elif there == own:
                yield label, _now(store, index, "check", own)
            elif self._guards.mark_after_other:
                yield label, _now(store, index, "other", known, own)
            else:
                yield label, _refused(store, index, known, own)

    def _check(self, store: Store, index: int, own: Version) -> Steps:
        block = _block(own.number)
        if store.marks < block:
            yield f"{index} GET gone/{block}: 404, returns True", _written(store, index, own)
        else:
            yield f"{index} GET gone/{block}: fails, as it cannot know", _now(store, index, "idle", NEVER)

    def _other(self, store: Store, index: int, known: Version, own: Version) -> Steps:
        block = _block(own.number)
        if store.marks < block:
            yield f"{index} GET gone/{block}: 404, returns False", _refused(store, index, known, own)
        else:
            yield f"{index} GET gone/{block}: fails, as it cannot know", _now(store, index, "idle", NEVER)


def _block(number: int) -> int:
    return (number + BLOCK - 1) // BLOCK


def _land(store: Store, version: Version) -> Store:
    return store._replace(versions=(*store.versions, version.author), sent=store.sent - {version})


def _get(store: Store, number: int) -> list[Version | None]:
    there = Version(number, store.versions[number - 1]) if number <= len(store.versions) else None
    if number > store.marks * BLOCK:
        return [there]
    return [None, there, *sorted(version for version in store.sent if version.number == number)]


def _written(store: Store, index: int, own: Version) -> Store | Violation:
    if store.versions[own.number - 1] != own.author:
        return Violation(f"put_state returns True, but version {own.number} is of {store.versions[own.number - 1]}")
    return _now(store, index, "idle", own)


def _refused(store: Store, index: int, known: Version, own: Version) -> Store | Violation:
    if store.versions[own.number - 1] == own.author:
        return Violation(f"put_state returns False, but version {own.number} is its own")
    return _now(store, index, "idle", known)


def _now(store: Store, index: int, *local: Any) -> Store:
    return store._replace(callers=(*store.callers[:index], local, *store.callers[index + 1 :]))
