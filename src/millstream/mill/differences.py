"""How the items of a space differ between a source and a destination, in bounded memory."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from millstream.mill.joining import outer_join
from millstream.mill.manifest import Manifest
from millstream.mill.policy import Pair
from millstream.mill.providers import Providers

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
    (:mod:`millstream.mill.brake`); nothing of it was put on the queue then.
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
    providers: Providers, manifest: Manifest, pair: Pair, space: str, *, after: str = ""
) -> Iterator[Found]:
    """Every item that either store of *pair* lists in *space*, with an id above *after*, in order.

    Two items are the same where their sizes agree and the manifest has one checksum for both that is no older than the
    source's last change.
    """
    now = providers.clock.now()
    listed = outer_join(
        providers.entries(pair.source, space, after=after), providers.entries(pair.destination, space, after=after)
    )
    recorded = outer_join(
        manifest.scan_known(pair.source, space, after=after), manifest.scan_known(pair.destination, space, after=after)
    )
    for content_id, entries, rows in outer_join(listed, recorded):
        if entries is not None:
            size = entries.left.size if entries.left is not None else 0
            row, copied = (rows.left, rows.right) if rows is not None else (None, None)
            kind, replaces = compare(entries.left, entries.right, row, copied, now)
            yield Found(content_id, kind, size, replaces)


def survey(providers: Providers, manifest: Manifest, pair: Pair, space: str, *, everything: bool = False) -> Plan:
    """Count how *space* differs between the stores of *pair*; with *everything* what is the same counts as a change."""
    counts: Counter[Difference] = Counter()
    examples: list[str] = []
    size = replaced = 0
    for found in differences(providers, manifest, pair, space):
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


def is_unchanged(modified: int | None, recorded: int, now: int | None = None) -> bool:
    """Whether a listed time of change tells of no change since what is *recorded* (all in microseconds).

    One that lies after *now* comes from a clock that is ahead, and tells nothing.
    """
    return modified is None or modified <= recorded or (now is not None and modified > now)
