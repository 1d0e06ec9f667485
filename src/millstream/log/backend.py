"""The seam below the log: where blocks, leases and small states are kept.

A backend knows nothing of messages. Every implementation passes
:class:`millstream.testing.log_backends.BackendConformance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from millstream.log.block_header import EncodedBlock
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.watermarks import decode_watermarks

if TYPE_CHECKING:
    from millstream.core.sqlite_vacuum import FileSizes


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log, and its writer.

    ``last_id`` is the writer pointer (0 at first), ``received_at`` the last receive time that the log has given.
    ``epoch`` counts the writers there have been; ``holder`` names the present one (empty: no process); its lease holds
    until ``lease_until`` on :meth:`Backend.lease_time`. ``first_id`` and ``hot_id`` are the log's
    :class:`~millstream.log.watermarks.Watermarks`, from its state of that name.
    """

    last_id: int = 0
    received_at: int = 0
    epoch: int = 0
    holder: bytes = b""
    lease_until: int = 0
    first_id: int = 1
    hot_id: int = 1

    def with_watermarks(self, value: bytes | None) -> Head:
        """The same with the watermarks in the *value* of their state."""
        watermarks = decode_watermarks(value)
        return msgspec.structs.replace(self, first_id=watermarks.first_id, hot_id=watermarks.hot_id)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a commit to a log.

    The writer of *epoch*, which left the log at *previous_id*, adds *blocks* and moves the writer pointer to
    *last_id*; *received_at* is the last receive time it has given; *producer* has now sent all up to *sequence*.
    """

    epoch: int
    previous_id: int
    last_id: int
    received_at: int
    blocks: Sequence[EncodedBlock]
    producer: str = ""
    sequence: int | None = None


class StoredBlock(msgspec.Struct, frozen=True):
    """A block as it lies in the store, with the ids it is filed under. Nothing has been checked."""

    first_id: int
    last_id: int
    data: bytes


class VersionedValue(msgspec.Struct, frozen=True):
    """A small value and how often it was written (1, 2, 3 …; a state that was never written has version 0)."""

    version: int = 0
    value: bytes = b""


class BlockStatistics(msgspec.Struct, frozen=True):
    """Totals of the blocks of a log. ``bytes`` as stored; times in microseconds, None where there is no block."""

    first_id: int = 1
    last_id: int = 0
    count: int = 0
    blocks: int = 0
    bytes: int = 0
    min_event_time: int | None = None
    max_event_time: int | None = None
    min_received_at: int | None = None
    max_received_at: int | None = None


def add_statistics(parts: Sequence[BlockStatistics]) -> BlockStatistics:
    """The totals of the non-empty *parts*, in order; damaged ones may have no times."""
    parts = [part for part in parts if part.blocks]
    if not parts:
        return BlockStatistics()
    timed = [part for part in parts if part.max_received_at is not None]
    least: dict[str, Any] = {
        name: min((getattr(part, name) for part in timed), default=None)
        for name in ("min_event_time", "min_received_at")
    }
    most: dict[str, Any] = {
        name: max((getattr(part, name) for part in timed), default=None)
        for name in ("max_event_time", "max_received_at")
    }
    return msgspec.structs.replace(
        parts[0],
        last_id=parts[-1].last_id,
        count=sum(part.count for part in parts),
        blocks=sum(part.blocks for part in parts),
        bytes=sum(part.bytes for part in parts),
        **least,
        **most,
    )


class Backend(Protocol):
    """A place for logs. Thread-safe. Unknown log names raise :class:`~millstream.log.errors.LogNotFoundError`.

    What :meth:`commit` and :meth:`put_state` return from survives a crash and, where ``durability`` is ``fsync``,
    a power loss. Failures below are raised as :class:`~millstream.log.errors.StorageError`.
    """

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    @property
    def durability(self) -> str:
        """``fsync``, ``os`` or ``memory``: what a confirmed message survives."""
        ...

    @property
    def one_host(self) -> bool:
        """True where every user of the store runs on one machine, so that a holder from another boot is gone."""
        ...

    def logs(self) -> Sequence[str]:
        """The names of all logs, sorted."""
        ...

    def kinds(self) -> Mapping[str, str]:
        """The names of all logs, sorted, each with its state :data:`~millstream.log.kinds.KIND` as text."""
        ...

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        """Make the log, whose first message gets the id *first_id*; nothing happens where it exists.

        Its state :data:`~millstream.log.kinds.KIND` is *kind*, from the moment that it is there.
        A log that begins later is as one that was trimmed: its pointer is *first_id* - 1, its marks are *first_id*.
        """
        ...

    def upgrade(self) -> None:
        """Let the store be of the present format, durably, which older releases refuse; logs stay as they are."""
        ...

    def rename(self, log: str, new: str, *, epoch: int) -> bool:
        """Call the log *new* from now on, with all that belongs to it, and end the lease of the writer of *epoch*.

        At once and durably, or not at all. False where that writer was replaced, or where names cannot change. No log
        is called *new*, and *new* is *log* behind ``system:``: the blocks stay as they are.
        """
        ...

    def head(self, log: str) -> Head: ...

    def lease_time(self) -> int:
        """The present time of the clock by which leases run out, in microseconds. Never goes back."""
        ...

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        """Make *holder* the writer with the epoch *epoch* + 1, if the epoch still is *epoch*."""
        ...

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        """Prolong the lease of the writer of *epoch*; False where it was replaced."""
        ...

    def release_lease(self, log: str, *, epoch: int) -> None:
        """The writer of *epoch* is done; nothing happens where it was replaced."""
        ...

    def commit(self, log: str, commit: Commit) -> None:
        """Do all of *commit*, durably, or nothing of it.

        Raises :class:`~millstream.log.errors.FencedError` unless epoch and writer pointer are those it states.
        """
        ...

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        """The blocks that hold *first_id* to *last_id*, in order: at least one if there is any, at most *max_bytes*."""
        ...

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        """The ids and sizes of the blocks that hold *first_id* to *last_id*, without reading the blocks."""
        ...

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        """The index entries of the blocks with *first_id* to *last_id*; empty if there are none."""
        ...

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        """The first block with a message that was received at *time* (microseconds) or later; None without one.

        Of the blocks that hold *first_id* and what comes after it.
        """
        ...

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        """What the blocks add up to that hold *first_id* and what comes after it."""
        ...

    def check(self, log: str) -> Sequence[str]:
        """Faults of the data that the backend keeps beside the blocks, in words; blocks are checked elsewhere. Data
        below the hot mark does not count.
        """
        ...

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        """Free blocks that end below the id *below*, the oldest first: one at least, about *max_bytes* at most.

        Returns how many bytes of blocks that were; 0 when nothing can be freed. What is freed together may be more
        than a block, a file for one, and only what lies wholly below is freed. A crash frees a part or nothing. The
        caller has moved the marks before.
        """
        ...

    def get_state(self, log: str, key: str) -> VersionedValue: ...

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        """Write version *version* + 1, durably, if the present version is *version*."""
        ...

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        """All states whose keys begin with *prefix*, without that prefix."""
        ...

    def close(self) -> None:
        """Release all resources; closing again does nothing."""
        ...


@runtime_checkable
class LooksCheaply(Protocol):
    """Further methods of a backend whose requests cost money."""

    def extent(self, log: str) -> Head:
        """As :meth:`Backend.head`, without who writes the log."""
        ...

    def is_at_end(self, log: str, last_id: int) -> bool:
        """Whether *last_id* seems to be the last one still, by one request. It may be True too long, for some calls."""
        ...


@runtime_checkable
class ListsEnds(Protocol):
    """A further method of a backend whose logs are rows of one table."""

    def last_ids(self) -> Mapping[str, int]:
        """The last durable id of each log, by name, in one query."""
        ...


@runtime_checkable
class CachesBlocks(Protocol):
    """A backend that keeps blocks in memory which it has written or read."""

    def forget_blocks(self) -> None:
        """Forget them: all blocks that are read from now on come from where they are stored."""
        ...


@runtime_checkable
class Vacuums(Protocol):
    """A backend in one file, which keeps the space of freed blocks for new ones."""

    def vacuum(self) -> FileSizes:
        """Give the space that no log uses back to the file system. A crash leaves every log as it was.

        Raises :class:`~millstream.log.errors.StorageFullError` where the disk has no room to do that, and
        :class:`~millstream.log.errors.StorageBusyError` where another process is reading or writing.
        """
        ...


@runtime_checkable
class VacuumedByServer(Protocol):
    """A backend in a database of a server, which keeps the space of freed blocks in the tables."""

    def vacuum_statements(self, log: str) -> Sequence[str]:
        """What an administrator executes to give the free space in the tables of *log* back to the server's disk."""
        ...


def producer_key(producer: str) -> str:
    """The state in which a backend keeps the sequence of *producer*, as decimal digits."""
    return f"producer/{producer}"


MAX_RECLAIMED_BLOCKS = 1024
"""How many blocks one transaction of :meth:`Backend.reclaim` looks at, at most."""


def oldest_within(blocks: Sequence[tuple[int, int]], max_bytes: int) -> tuple[int, int]:
    """Of *blocks* (first id and bytes, the oldest first) those within *max_bytes*, one at least.

    Returns the first id of the last of them and what they add up to in bytes; zeros where there is none.
    """
    last_id = total = 0
    for first_id, size in blocks:
        if total and total + size > max_bytes:
            break
        last_id, total = first_id, total + size
    return last_id, total
