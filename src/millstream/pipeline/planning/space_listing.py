"""Ranges of a space for tasks that list it side by side: cut where content ids branch, found by looking."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from millstream.stores.protocol import Entry, Store, all_entries

PAGE = 1000
"""Entries of one request; what has no more is not cut."""

MOST_PROBES = 500
"""Requests that the cutting of a space may take."""

_LAST = "\U0010ffff"

INVENTORY_SCHEMA = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""One row a listed content item. ``store`` is the configured id; ``size`` in bytes, ``modified`` in microseconds since
the epoch, UTC, null where the provider has none. A row with ``error`` is not an item: there a listing broke off."""


class ContentIdRange(msgspec.Struct, frozen=True):
    """The content ids above ``after`` up to ``until``, which is in it; None is the end of the space."""

    after: str = ""
    until: str | None = None


def cut_space(store: Store, space: str, wanted: int) -> list[ContentIdRange]:
    """*space* in at most *wanted* ranges, one after the other: no content id is in none, or in two.

    It cuts where ids differ in their first character, then in the next one, and so on; each cut takes a request. Raises
    the errors of the store.
    """
    cuts: set[str] = set()
    prefixes, probes = [""], _Probes(store, space)
    while prefixes and len(cuts) < wanted - 1 and probes.left > 0:
        large = [prefix for prefix in prefixes if not probes.is_small(prefix)]
        grown = [[prefix + character for character in probes.characters(prefix)] for prefix in large]
        cuts.update(branch for branches in grown for branch in branches[1:])
        prefixes = [branch for branches in grown for branch in branches]
    chosen = _evenly(sorted(cuts), wanted - 1)
    return [ContentIdRange(low, high) for low, high in zip(["", *chosen], [*chosen, None], strict=True)]


def entries_within(store: Store, space: str, wanted: ContentIdRange, chunk: int = PAGE) -> Iterator[Entry]:
    """Every entry of *space* in the range *wanted*, chunk by chunk."""
    if not wanted.after and wanted.until is None:
        yield from all_entries(store, space, chunk=chunk)
        return
    after = wanted.after
    while True:
        entries = store.entries(space, after=after, limit=chunk)
        for entry in entries:
            if wanted.until is not None and entry.content_id > wanted.until:
                return
            yield entry
        if len(entries) < chunk:
            return
        after = entries[-1].content_id


class _Probes:
    """Looks at what follows a prefix, and counts the requests."""

    def __init__(self, store: Store, space: str) -> None:
        self._store, self._space = store, space
        self.left = MOST_PROBES

    def is_small(self, prefix: str) -> bool:
        """Whether one request would list all that begins with *prefix*."""
        if self.left <= 0:
            return True
        self.left -= 1
        return len(self._store.entries(self._space, prefix=prefix, limit=PAGE)) < PAGE

    def characters(self, prefix: str) -> list[str]:
        """The characters that follow *prefix*, in order; where there are very many, the first of them."""
        found: list[str] = []
        after = prefix  # the id that is the prefix itself has no character to follow it
        while self.left > 0:
            self.left -= 1
            entries = self._store.entries(self._space, prefix=prefix, after=after, limit=1)
            if not entries:
                break
            character = entries[0].content_id[len(prefix)]
            repeated = bool(found) and found[-1] == character
            after = after + _LAST if repeated else prefix + character + _LAST
            if not repeated:
                found.append(character)
        return found


def _evenly(cuts: list[str], most: int) -> list[str]:
    """At most *most* of *cuts*, about as far apart as one another."""
    if len(cuts) <= most:
        return cuts
    return [cuts[number * len(cuts) // most] for number in range(most)]
