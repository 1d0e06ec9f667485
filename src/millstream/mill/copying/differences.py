"""How the items of a space differ between a source and a destination, in bounded memory."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from operator import le
from typing import NamedTuple, Protocol

import msgspec

from millstream.mill.copying.recorder import is_unchanged, record_run
from millstream.mill.manifest import Manifest
from millstream.mill.manifest_table import KNOWN, Known
from millstream.mill.policies.policy import Pair
from millstream.mill.providers import Providers
from millstream.mill.runs import Run, join_runs

EXAMPLES = 10


class Difference(enum.StrEnum):
    """How an item differs between source and destination."""

    COPY = "copy"  # the destination has not got it
    CHANGE = "change"  # it may have changed at the source
    SAME = "same"
    DELETE = "delete"  # only the destination has it, and the manifest has its tombstone
    HELD = "held"  # only the destination has it, and nothing says that it was deleted


class Listed(Protocol):
    """What an end lists of an item."""

    @property
    def size(self) -> int: ...
    @property
    def modified(self) -> int | None: ...


class Recorded(Protocol):
    """What the manifest has of an item at one end."""

    @property
    def sha256(self) -> str | None: ...
    @property
    def modified(self) -> int: ...
    @property
    def deleted(self) -> bool: ...


class Found(NamedTuple):
    """An item of a space, how it differs, its bytes at the source, and whether a recorded copy would be replaced."""

    name: str
    kind: Difference
    size: int
    replaces: bool


class Plan(msgspec.Struct, frozen=True):
    """What was found for one pair of stores and one space, in items.

    ``bytes`` are those of the items to copy and to compare. ``replaced`` of the changes would put other bytes in the
    place of a recorded copy; ``copied`` items are at the destination by now. ``held`` items are only there and have no
    tombstone, so nothing may be deleted (promise P8): record their deletion, or put them back at the source.
    ``held_examples`` names the first of them. ``hold`` is the number under which the whole plan waits for an approval
    (:mod:`millstream.mill.copying.brake`); nothing of it was put on the queue then.
    """

    pair: Pair
    space: str
    copies: int = 0
    changes: int = 0
    deletes: int = 0
    same: int = 0
    held: int = 0
    held_examples: tuple[str, ...] = ()
    bytes: int = 0
    replaced: int = 0
    copied: int = 0
    hold: int | None = None

    @property
    def tasks(self) -> int:
        """Tasks that were put on the queue, or in a dry run would have been."""
        return self.copies + self.changes + self.deletes


def differences(
    providers: Providers, manifest: Manifest, pair: Pair, space: str, *, after: str = "", same: bool = True
) -> Iterator[Found]:
    """Every item that either store of *pair* lists in *space*, with an id above *after*, in order.

    Two items are the same where their sizes agree and the manifest has one checksum for both that is no older than the
    source's last change. With *same* False they are left out.
    """
    now = providers.clock.now()
    for run in _joined(providers, manifest, pair, space, after):
        if not _is_same(run):
            yield from (one for one in _found(run, now) if same or one.kind != Difference.SAME)
        elif same:
            yield from (
                Found(name, Difference.SAME, size, False) for name, size in zip(run.keys, run.columns[0], strict=True)
            )


def survey(
    providers: Providers,
    manifest: Manifest,
    pair: Pair,
    space: str,
    *,
    everything: bool = False,
    record: bool = False,
) -> Plan:
    """Count how *space* differs between the stores of *pair*; with *everything* what is the same counts as a change.

    With *record* the manifest is brought up to date with the source on the way
    (:mod:`millstream.mill.copying.recorder`).
    """
    counts: Counter[Difference] = Counter()
    examples: list[str] = []
    size = replaced = 0
    now = providers.clock.now()
    for read in _joined(providers, manifest, pair, space, ""):
        if _is_same(read):
            counts[Difference.SAME] += len(read.keys)
            size += sum(read.columns[0]) if everything else 0
            continue
        run = _recorded(providers, manifest, pair.source, space, read, now=now) if record else read
        for found in _found(run, now):
            counts[found.kind] += 1
            replaced += found.replaces
            if found.kind in (Difference.COPY, Difference.CHANGE) or (everything and found.kind == Difference.SAME):
                size += found.size
            elif found.kind == Difference.HELD and len(examples) < EXAMPLES:
                examples.append(found.name)
    return Plan(
        pair,
        space,
        copies=counts[Difference.COPY],
        changes=counts[Difference.CHANGE] + (counts[Difference.SAME] if everything else 0),
        deletes=counts[Difference.DELETE],
        same=0 if everything else counts[Difference.SAME],
        held=counts[Difference.HELD],
        held_examples=tuple(examples),
        bytes=size,
        replaced=replaced,
        copied=counts.total() - counts[Difference.COPY],
    )


def _joined(providers: Providers, manifest: Manifest, pair: Pair, space: str, after: str) -> Iterator[Run]:
    """What both ends list and what the manifest has of each, with the columns of :func:`_is_same`."""
    source, destination = pair.source, pair.destination
    listed, recorded = 2, len(KNOWN) - 1
    return join_runs(
        join_runs(
            providers.runs(source, space, after=after), providers.runs(destination, space, after=after), listed, listed
        ),
        join_runs(
            manifest.scan_known(source, space, after=after), manifest.scan_known(destination, space, after=after),
            recorded, recorded,
        ),
        2 * listed, 2 * recorded,
    )  # fmt: skip


def _recorded(providers: Providers, manifest: Manifest, source: str, space: str, run: Run, *, now: int) -> Run:
    """*run* with the rows of the source as they are once it is recorded."""
    columns, end = run.columns, 4 + len(KNOWN) - 1
    known = Run(run.keys, columns[:2] + columns[4:end])
    if not record_run(providers, manifest, source, space, known, now=now).recorded:
        return run
    rows = manifest.get_many(source, space, run.keys)
    values = [[getattr(rows[key], name) if key in rows else None for key in run.keys] for name in KNOWN[1:]]
    return Run(run.keys, (*columns[:4], *values, *columns[end:]))


def _is_same(run: Run) -> bool:
    """Whether every item of *run* is plainly the same at both ends; what is not may be so all the same.

    An item that is not as long as it was recorded is not: it is to be recorded first.
    """
    sizes, times, copied_sizes, _, sums, recorded_sizes, recorded, gone, copied_sums, _, _, copied_gone = run.columns
    if not sizes == copied_sizes == recorded_sizes or sums != copied_sums or None in sums or None in times:
        return False
    return not any(gone) and not any(copied_gone) and all(map(le, times, recorded))


def _found(run: Run, now: int) -> Iterator[Found]:
    """Each item of *run* that either end lists, compared by itself."""
    for name, size, time, copied_size, copied_time, *rows in zip(run.keys, *run.columns, strict=True):
        source = None if size is None else _Listed(size, time)
        copy = None if copied_size is None else _Listed(copied_size, copied_time)
        if source is not None or copy is not None:
            row, copied = (None if one[2] is None else Known(name, *one) for one in (rows[:4], rows[4:]))
            kind, replaces = compare(source, copy, row, copied, now)
            yield Found(name, kind, size or 0, replaces)


class _Listed(NamedTuple):
    size: int
    modified: int | None


def compare(
    source: Listed | None, copy: Listed | None, row: Recorded | None, copied: Recorded | None, now: int | None = None
) -> tuple[Difference, bool]:
    """How an item that at least one end lists differs, and whether a copy that is recorded would be replaced.

    *source* and *copy* are what the two ends list, *row* and *copied* what the manifest has of them. A change that is
    to come after *now* (microseconds) is none: see :func:`is_unchanged`.
    """
    if source is None:
        return (Difference.DELETE if row is not None and row.deleted else Difference.HELD), False
    if copy is None:
        return Difference.COPY, False
    if row is None or copied is None or row.deleted or copied.deleted:
        return Difference.CHANGE, False
    unchanged = is_unchanged(source.modified, row.modified, now)
    alike = row.sha256 is not None and row.sha256 == copied.sha256
    if unchanged and alike and source.size == copy.size:
        return Difference.SAME, False
    return Difference.CHANGE, not (alike and unchanged)
