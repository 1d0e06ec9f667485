"""Sealed objects, the layouts that name them, and the sweep of the others: every step of two compactors.

A compactor writes its sealed object under a new name that contains the version of the layout it is meant for, then
creates that layout. It may merge: the new layout then names its object alone. A sweep may run at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.object_model.search import Violation


class Sealed(NamedTuple):
    """The object ``sealed/<target>-<nonce>``."""

    target: int
    nonce: str


class Shelf(NamedTuple):
    """A state of everything: the layouts (each the objects it names), the objects, what may still arrive."""

    layouts: tuple[frozenset[Sealed], ...]
    objects: frozenset[Sealed]
    sent: frozenset[tuple[int, frozenset[Sealed]]]
    compactors: tuple[tuple[Any, ...], ...]
    runs: int


@dataclass(frozen=True)
class SweepGuards:
    target_in_name: bool = True
    """Only objects meant for a version that exists are swept."""


Steps = Iterator[tuple[str, Shelf | Violation]]


def first_shelf(compactors: int = 2) -> Shelf:
    return Shelf((frozenset(),), frozenset(), frozenset(), (("idle",),) * compactors, 0)


class SweepProtocol:
    """What compactors (*runs* compactions together) and sweeps may do next."""

    def __init__(self, runs: int, guards: SweepGuards) -> None:
        self._runs, self._guards = runs, guards

    def steps(self, shelf: Shelf) -> Steps:
        for version, names in sorted(shelf.sent, key=repr):
            if version == len(shelf.layouts):
                yield f"late: PUT layout/{version} takes effect", _land(shelf, version, names)
        for index, local in enumerate(shelf.compactors):
            yield from getattr(self, f"_{local[0]}")(shelf, index, *local[1:])
        yield from self._sweeps(shelf)

    def _idle(self, shelf: Shelf, index: int) -> Steps:
        if shelf.runs < self._runs:
            version = len(shelf.layouts)
            own = Sealed(version, f"{'XY'[index]}{shelf.runs}")
            written = shelf._replace(objects=shelf.objects | {own}, runs=shelf.runs + 1)
            yield f"{own.nonce[0]} PUT sealed/{version}-{own.nonce}", _now(written, index, "publish", own)

    def _publish(self, shelf: Shelf, index: int, own: Sealed) -> Steps:
        before = shelf.layouts[own.target - 1]
        idle = _now(shelf, index, "idle")
        if own.target < len(shelf.layouts):
            yield f"{own.nonce[0]} PUT layout/{own.target}: 412", idle
            return
        for names, what in ((before | {own}, "adds to"), (frozenset({own}), "merges")):
            label = f"{own.nonce[0]} PUT layout/{own.target} ({what} what is there)"
            yield f"{label}: 200", _land(idle, own.target, names)
            yield f"{label}: no answer, it gives up", idle._replace(sent=idle.sent | {(own.target, names)})

    def _sweeps(self, shelf: Shelf) -> Steps:
        """A sweep may know an old layout only."""
        for version, names in enumerate(shelf.layouts):
            for item in sorted(shelf.objects - names):
                if item.target <= version or (not self._guards.target_in_name and version == len(shelf.layouts) - 1):
                    swept = shelf._replace(objects=shelf.objects - {item})
                    label = f"a sweep that knows layout/{version} deletes sealed/{item.target}-{item.nonce}"
                    yield label, _checked(swept)


def _land(shelf: Shelf, version: int, names: frozenset[Sealed]) -> Shelf | Violation:
    sent = frozenset(layout for layout in shelf.sent if layout[0] > version)
    return _checked(shelf._replace(layouts=(*shelf.layouts, names), sent=sent))


def _checked(shelf: Shelf) -> Shelf | Violation:
    lost = sorted(shelf.layouts[-1] - shelf.objects)
    return Violation(f"layout/{len(shelf.layouts) - 1} names {lost[0].nonce}, which is gone") if lost else shelf


def _now(shelf: Shelf, index: int, *local: Any) -> Shelf:
    return shelf._replace(compactors=(*shelf.compactors[:index], local, *shelf.compactors[index + 1 :]))
