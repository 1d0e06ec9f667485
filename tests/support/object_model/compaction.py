"""Compaction of commits into sealed objects, merges of these, trims and sweeps: every step of two compactors.

A compactor seals what follows the last row, enters a row by the next version of the rows, raises the hot mark, and
deletes the commits below it. It may merge neighbours into one object, whose name has the version of the rows that it
is meant for. A process may stop before any step, or go on much later; a version that got no answer may still arrive. A
sweep may know an old version of the rows only. Blocks have the ids 1, 2, 3 …, and each was a commit of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.object_model.search import Violation


class Sealed(NamedTuple):
    """The object with the blocks *first* to *last*; *target* is the version it was merged for (0: it is not merged)."""

    first: int
    last: int
    target: int = 0

    def __str__(self) -> str:
        return f"sealed/{self.first}-{self.last}" + (f".{self.target}" if self.target else "")


Rows = tuple[Sealed, ...]


class Shelf(NamedTuple):
    """A state of everything. ``versions`` has the rows of each version, ``start`` the first commit that is left."""

    versions: tuple[Rows, ...]
    objects: frozenset[Sealed]
    sent: frozenset[tuple[int, Rows]]
    start: int
    hot: int
    first: int
    compactors: tuple[tuple[Any, ...], ...]
    runs: int
    losses: int

    @property
    def rows(self) -> Rows:
        return self.versions[-1]


@dataclass(frozen=True)
class CompactionGuards:
    enter_before_free: bool = True
    """A row is entered before the commits are deleted whose blocks it has."""
    behind_last_row: bool = True
    """A row is added only if it begins where the last one ends."""
    sweep_ended: bool = True
    """An object is swept only if it ends at or before the last row."""
    target_in_name: bool = True
    """A merged object is swept only if the version of the rows exists that it is meant for."""
    replace_before_delete: bool = True
    """The merged object is entered before those are deleted whose place it takes."""


Steps = Iterator[tuple[str, Shelf | Violation]]


def first_shelf(compactors: int = 2) -> Shelf:
    """A log of commits only."""
    return Shelf(((),), frozenset(), frozenset(), 1, 1, 1, (("idle",),) * compactors, 0, 0)


class CompactionProtocol:
    """What two compactors of a log with *blocks* commits may do next, in *runs* runs.

    *losses* versions of the rows get no answer.
    """

    def __init__(self, blocks: int, runs: int, losses: int, guards: CompactionGuards) -> None:
        self._blocks, self._runs, self._losses, self._guards = blocks, runs, losses, guards

    def steps(self, shelf: Shelf) -> Steps:
        for label, after in self._all_steps(shelf):
            yield label, after if isinstance(after, Violation) else self._checked(after)

    def _all_steps(self, shelf: Shelf) -> Steps:
        for version, rows in sorted(shelf.sent, key=repr):
            if version == len(shelf.versions):
                yield f"late: rows/{version} arrives", _put(shelf, rows)
        for index, local in enumerate(shelf.compactors):
            yield from getattr(self, f"_{local[0]}")(shelf, index, *local[1:])
            if local[0] != "idle":
                yield f"{'XY'[index]} stops", _now(shelf, index, "idle")
        yield from self._sweeps(shelf)
        if shelf.first == 1:
            for first in range(2, self._blocks + 1):
                yield f"the log is trimmed to {first}", shelf._replace(first=first, hot=max(shelf.hot, first))

    def _idle(self, shelf: Shelf, index: int) -> Steps:
        if shelf.runs == self._runs:
            return
        begun = shelf._replace(runs=shelf.runs + 1)
        for last in range(shelf.hot, self._blocks):
            yield f"{'XY'[index]} looks: hot mark {shelf.hot}", _now(begun, index, "seal", shelf.hot, last)
        version = len(shelf.versions) - 1
        if len(shelf.rows) > 1:
            yield f"{'XY'[index]} reads rows/{version} to merge", _now(begun, index, "merge", version)
        if shelf.rows and shelf.rows[0].last < shelf.first:
            yield f"{'XY'[index]} reads rows/{version} to drop", _now(begun, index, "drop", version)

    def _seal(self, shelf: Shelf, index: int, first: int, last: int) -> Steps:
        if shelf.start > first:
            return  # commits are missing: it looks again whether they were moved
        made = Sealed(first, last)
        after = shelf._replace(objects=shelf.objects | {made})
        yield f"{'XY'[index]} PUT {made}", _now(after, index, "add" if self._guards.enter_before_free else "free", made)

    def _add(self, shelf: Shelf, index: int, made: Sealed) -> Steps:
        name, rows = "XY"[index], shelf.rows
        may_follow = not rows or not self._guards.behind_last_row or rows[-1].last + 1 == made.first
        label = f"{name} reads rows/{len(shelf.versions) - 1}"
        if may_follow:
            yield label, _now(shelf, index, "put", len(shelf.versions), (*rows, made), ("mark",))
        else:
            yield f"{label}: others were quicker", _now(shelf, index, "idle")

    def _put(self, shelf: Shelf, index: int, version: int, rows: Rows, then: tuple[Any, ...]) -> Steps:
        label = f"{'XY'[index]} PUT rows/{version} ({', '.join(map(str, rows))})"
        if shelf.losses < self._losses:
            lost = shelf._replace(sent=shelf.sent | {(version, rows)}, losses=shelf.losses + 1)
            yield f"{label}: no answer, it gives up", _now(lost, index, "idle")
        if version == len(shelf.versions):
            yield f"{label}: 200", _now(_put(shelf, rows), index, *then)
        else:
            yield f"{label}: 412", _now(shelf, index, "idle")

    def _mark(self, shelf: Shelf, index: int) -> Steps:
        hot = max(shelf.hot, shelf.rows[-1].last + 1 if shelf.rows else 1)
        yield f"{'XY'[index]} raises the hot mark to {hot}", _now(shelf._replace(hot=hot), index, "free", None)

    def _free(self, shelf: Shelf, index: int, made: Sealed | None) -> Steps:
        start = max(shelf.start, shelf.hot if made is None else made.last + 1)
        freed = shelf._replace(start=start)
        label = f"{'XY'[index]} deletes the commits below {start}"
        yield label, _now(freed, index, "idle") if made is None else _now(freed, index, "add", made)

    def _merge(self, shelf: Shelf, index: int, version: int) -> Steps:
        rows = shelf.versions[version]
        for begin in range(len(rows) - 1):
            old = rows[begin : begin + 2]
            if not set(old) <= shelf.objects:
                continue  # they are gone: it reads the rows again
            target = version + 1 if self._guards.target_in_name else 0
            made = Sealed(old[0].first, old[1].last, target)
            after = shelf._replace(objects=shelf.objects | {made})
            new = (*rows[:begin], made, *rows[begin + 2 :])
            put: tuple[Any, ...] = ("put", version + 1, new, ("delete", old, ("idle",)))
            if not self._guards.replace_before_delete:
                put = ("delete", old, ("put", version + 1, new, ("idle",)))
            yield f"{'XY'[index]} PUT {made} in place of {old[0]} and {old[1]}", _now(after, index, *put)

    def _delete(self, shelf: Shelf, index: int, old: Rows, then: tuple[Any, ...]) -> Steps:
        kept = shelf._replace(objects=shelf.objects - set(old))
        yield f"{'XY'[index]} deletes {', '.join(map(str, old))}", _now(kept, index, *then)

    def _drop(self, shelf: Shelf, index: int, version: int) -> Steps:
        rows = shelf.versions[version]
        old = tuple(row for row in rows if row.last < shelf.first)
        new = tuple(row for row in rows if row.last >= shelf.first)
        put = ("put", version + 1, new, ("idle",))
        yield f"{'XY'[index]} begins to drop what was trimmed", _now(shelf, index, "delete", old, put)

    def _sweeps(self, shelf: Shelf) -> Steps:
        for version, rows in enumerate(shelf.versions):
            last_id = rows[-1].last if rows else 0
            for item in sorted(shelf.objects - set(rows)):
                may_go = item.target <= version if item.target else item.last <= last_id
                if may_go or not self._guards.sweep_ended:
                    label = f"a sweep that knows rows/{version} deletes {item}"
                    yield label, shelf._replace(objects=shelf.objects - {item})

    def _checked(self, shelf: Shelf) -> Shelf | Violation:
        rows = shelf.rows
        for before, after in itertools.pairwise(rows):
            if after.first != before.last + 1:
                return Violation(f"rows/{len(shelf.versions) - 1} has {after} after {before}")
        there = [row for row in rows if row in shelf.objects]
        for block in range(shelf.first, min(shelf.start, self._blocks + 1)):
            if not any(row.first <= block <= row.last for row in there):
                return Violation(
                    f"block {block} is lost: commits begin at {shelf.start}, and no row that is there has it"
                )
        return shelf


def _put(shelf: Shelf, rows: Rows) -> Shelf:
    sent = frozenset(each for each in shelf.sent if each[0] > len(shelf.versions))
    return shelf._replace(versions=(*shelf.versions, rows), sent=sent)


def _now(shelf: Shelf, index: int, *local: Any) -> Shelf:
    return shelf._replace(compactors=(*shelf.compactors[:index], local, *shelf.compactors[index + 1 :]))
