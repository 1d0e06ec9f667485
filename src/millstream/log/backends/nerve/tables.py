"""The names of a queue's tables, and finding out which tables a queue has."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

import msgspec

from millstream.log.backends.nerve.address import NerveAddress
from millstream.log.errors import DamagedLogError, LogInputError

_TABLE = re.compile(r"queue_(?P<queue>.+)_(?P<of>\d{3,})_(?P<number>\d{4,})(?P<pointers>_pointers)?")
_LONGEST = 64 - len("queue__000_0000_pointers")
NEW_SHARDS, NEW_POINTERS = 4, 1
"""The defaults of a new queue, as in nerve."""


class QueueTables(msgspec.Struct, frozen=True):
    """The tables of *queue*: message *id* lies in number ``id mod shards``, all pointers lie in the first of theirs."""

    queue: str
    shards: int
    pointers: int

    def rows(self, shard: int) -> str:
        """The table of the rows of *shard*, for use in a statement."""
        return f"`queue_{self.queue}_{self.shards:03d}_{shard:04d}`"

    @property
    def first_pointers(self) -> str:
        """The table of all pointers; the others of its kind stay empty."""
        return self.pointer_table(0)

    def pointer_table(self, number: int) -> str:
        """The table of pointers with this *number*."""
        return f"`queue_{self.queue}_{self.pointers:03d}_{number:04d}_pointers`"

    def key(self, consumer: str = "") -> str:
        """The key of a consumer's pointer; without a name that of the writer."""
        return f"{self.queue}:{consumer}"


class FoundTables(msgspec.Struct, frozen=True):
    """The tables that a queue has in a database: for each shard count and each pointer count which numbers exist."""

    shards: Mapping[int, Set[int]]
    pointers: Mapping[int, Set[int]]


def find_queues(names: Iterable[str]) -> dict[str, FoundTables]:
    """The queues whose tables are among *names*."""
    found: dict[str, FoundTables] = defaultdict(lambda: FoundTables(defaultdict(set), defaultdict(set)))
    for name in names:
        match = _TABLE.fullmatch(name)
        if match:
            kind = found[match["queue"]].pointers if match["pointers"] else found[match["queue"]].shards
            kind[int(match["of"])].add(int(match["number"]))  # type: ignore[attr-defined]
    return dict(found)


def choose_tables(address: NerveAddress, queue: str, found: FoundTables | None) -> QueueTables | None:
    """The tables of *queue* that *address* asks for; None where the queue has none.

    Raises :class:`LogInputError`, which lists what was found, where the counts do not fit: they are part of the names,
    so that another count would begin another queue without a word.
    """
    if found is None or not found.shards:
        return None
    if not found.pointers:
        raise DamagedLogError(
            f"queue {queue!r} in {address.database.url} was created with {_listed('shards', found.shards)}, "
            "but has no tables for pointers: restore them from a backup"
        )
    shards = _fitting(address, queue, "shards", address.shards, found.shards)
    return QueueTables(queue, shards, _fitting(address, queue, "pointers", address.pointers, found.pointers))


def new_tables(address: NerveAddress, queue: str) -> QueueTables:
    """The tables that a new *queue* gets. Raises :class:`LogInputError` where its name is too long for them."""
    if len(queue) > _LONGEST:
        raise LogInputError(f"queue name {queue!r} is too long for the nerve layout: use at most {_LONGEST} characters")
    return QueueTables(queue, address.shards or NEW_SHARDS, address.pointers or NEW_POINTERS)


def _fitting(address: NerveAddress, queue: str, kind: str, wanted: int, found: Mapping[int, Set[int]]) -> int:
    if wanted in found:
        return wanted
    if not wanted and len(found) == 1:
        return next(iter(found))
    asked = f"says {kind}={wanted}" if wanted else f"has no {kind}="
    existing = " or ".join(f"{kind}={count}" for count in sorted(found))
    raise LogInputError(
        f"queue {queue!r} in {address.database.url} was created with {_listed(kind, found)}, but the URL "
        f"{asked}: use {existing}, or copy the queue into another database with `millstream log copy`"
    )


def _listed(kind: str, found: Mapping[int, Set[int]]) -> str:
    return ", ".join(
        f"{count} {kind} ({len(numbers)} of {count} tables exist)" for count, numbers in sorted(found.items())
    )
