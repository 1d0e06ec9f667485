"""Planning duplication: which items of a space differ between source and destination, as tasks on a queue."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from millstream.mill.joining import Joined, groups, outer_join
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.policy import Pair, Policy
from millstream.mill.policy_repository import Policies
from millstream.mill.providers import Providers
from millstream.mill.tasks import Duplicate, encode_task
from millstream.queue.protocol import WorkQueue
from millstream.stores.protocol import Entry

GROUP = 1000
"""Tasks put on the queue together (seed document: "it will only add 1000 items at a time")."""

EXAMPLES = 10


class Difference(enum.StrEnum):
    """How an item differs between source and destination."""

    COPY = "copy"  # the destination has not got it
    CHANGE = "change"  # it may have changed at the source
    SAME = "same"
    DELETE = "delete"  # only the destination has it, and the manifest has its tombstone
    HELD = "held"  # only the destination has it, and nothing says that it was deleted


class Plan(msgspec.Struct, frozen=True):
    """What was found for one pair of stores and one space, in items.

    ``bytes`` are those of the items to copy and to compare. ``held`` items are only at the destination and have no
    tombstone, so nothing may be deleted (promise P8): record their deletion, or put them back at the source.
    ``held_examples`` names the first of them.
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

    @property
    def tasks(self) -> int:
        """Tasks that were put on the queue, or in a dry run would have been."""
        return self.copies + self.changes + self.deletes


class _Found(NamedTuple):
    """An item of a space, how it differs, and its bytes at the source."""

    name: str
    kind: Difference
    size: int


def plan_space_duplication(
    providers: Providers,
    manifest: Manifest,
    pair: Pair,
    space: str,
    queue: WorkQueue | None,
    *,
    everything: bool = False,
) -> Plan:
    """Put a :class:`Duplicate` task on *queue* for every item of *space* that differs between the stores of *pair*.

    All deletes come before all copies; last comes a task for the space itself where one end has not got it. Two items
    are the same where their sizes agree and the manifest has one checksum for both that is no older than the source's
    last change; with *everything* they are put on the queue all the same, as the document's looping producer does.
    Without a queue this is a dry run.
    """
    counts: Counter[Difference] = Counter()
    examples: list[str] = []
    size = 0
    queued = {Difference.COPY, Difference.CHANGE, Difference.DELETE} | ({Difference.SAME} if everything else set())
    for wanted in ({Difference.DELETE, Difference.HELD}, {Difference.COPY, Difference.CHANGE, Difference.SAME}):
        found = (one for one in _differences(providers, manifest, pair, space) if one.kind in wanted)
        for group in groups(found, GROUP):
            counts.update(one.kind for one in group)
            examples += [one.name for one in group if one.kind == Difference.HELD][: EXAMPLES - len(examples)]
            chosen = [one for one in group if one.kind in queued]
            size += sum(one.size for one in chosen if one.kind != Difference.DELETE)
            _put(queue, pair, space, [one.name for one in chosen])
    if not all(_has_space(providers, store, space) for store in (pair.source, pair.destination)):
        _put(queue, pair, space, [""])
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
    )


def duplication_rounds(
    policies: Policies, providers: Providers, space: str | None = None
) -> Sequence[Sequence[tuple[Pair, str]]]:
    """What the policies ask to be copied: pairs of stores with a space of at least one of them, in rounds.

    A pair whose source is itself a copy (A → B, B → C) comes in a later round than the pair that fills it. With
    *space*, only that one. Raises :class:`UnknownStoreError` for a pair whose store is not configured.
    """
    rounds: dict[int, list[tuple[Pair, str]]] = {}
    for policy in policies.by_account.values():
        for name in sorted(_spaces(policy, providers) if space is None else {space}):
            pairs = policy.lookup(name)
            for pair in pairs:
                rounds.setdefault(_depth(pair, pairs), []).append((pair, name))
    return [list(dict.fromkeys(rounds[depth])) for depth in sorted(rounds)]


def _spaces(policy: Policy, providers: Providers) -> set[str]:
    stores = {store for pair in policy.pairs for store in (pair.source, pair.destination)}
    return {space for store in stores for space in providers.call(providers[store].spaces)}


def _depth(pair: Pair, pairs: Sequence[Pair], seen: frozenset[Pair] = frozenset()) -> int:
    """How many copies lie between the original and this pair's source; a circle ends where it closes."""
    feeding = [other for other in pairs if other.destination == pair.source and other not in seen and other != pair]
    return max((1 + _depth(other, pairs, seen | {pair}) for other in feeding), default=0)


def _has_space(providers: Providers, store: str, space: str) -> bool:
    return providers.call(lambda: providers[store].has_space(space))


def _differences(providers: Providers, manifest: Manifest, pair: Pair, space: str) -> Iterator[_Found]:
    listed = outer_join(providers.entries(pair.source, space), providers.entries(pair.destination, space))
    recorded = outer_join(manifest.scan(pair.source, space), manifest.scan(pair.destination, space))
    for content_id, entries, rows in outer_join(listed, recorded):
        if entries is not None:
            yield _Found(content_id, _compare(entries, rows), entries.left.size if entries.left is not None else 0)


def _compare(entries: Joined[Entry, Entry], rows: Joined[ManifestRow, ManifestRow] | None) -> Difference:
    row = rows.left if rows is not None else None
    if entries.left is None:
        return Difference.DELETE if row is not None and row.deleted else Difference.HELD
    if entries.right is None:
        return Difference.COPY
    copied = rows.right if rows is not None else None
    return Difference.SAME if _same(entries.left, entries.right, row, copied) else Difference.CHANGE


def _same(source: Entry, copy: Entry, row: ManifestRow | None, copied: ManifestRow | None) -> bool:
    if row is None or copied is None or row.deleted or copied.deleted:
        return False
    unchanged = source.modified is None or source.modified <= row.modified
    return unchanged and source.size == copy.size and row.sha256 is not None and row.sha256 == copied.sha256


def _put(queue: WorkQueue | None, pair: Pair, space: str, names: list[str]) -> None:
    if queue is not None and names:
        queue.put([encode_task(Duplicate(pair.source, pair.destination, space, name)) for name in names])
