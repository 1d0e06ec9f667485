"""Writing rows: into all tables of a queue, at once where they are many, and then the writer pointer over them.

The pointer is the end of what exists: rows above it are seen by no process. Every transaction checks, under a lock,
that its writer still has the lease and that the pointer is where it left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.log.backend import Commit, producer_key
from millstream.log.backends.database.driver import DatabaseConnection, ServerError
from millstream.log.backends.database.pool import PooledConnection
from millstream.log.backends.mysql.error_codes import DUPLICATE
from millstream.log.backends.nerve import statements as sql
from millstream.log.backends.nerve.database import NerveDatabase
from millstream.log.backends.nerve.tables import QueueTables
from millstream.log.backends.nerve.throttle import Throttle
from millstream.log.block import Block
from millstream.log.encoding.columns import lengths_of
from millstream.log.errors import FencedError, LogInputError, MessageTooLargeError

TOGETHER = 2_000
"""Up to this many rows are written in one transaction with the pointer; more are written to all tables in parallel."""

MOST_ROWS = 10_000
"""In one statement (seed document nerve)."""

_STATEMENT_BYTES = 4096
_ROW_BYTES = 32
_NOT_KEPT = ["source", "key", "headers"]


class ForeignPublisherError(FencedError):
    """A program that takes no lease publishes to the same queue."""


class ShardBatch(msgspec.Struct, frozen=True):
    """The rows of one commit that go into one table."""

    shard: int
    ids: range
    bodies: Sequence[bytes]


class RowWriter:
    """Writes the rows of one queue."""

    def __init__(
        self, database: NerveDatabase, tables: QueueTables, threads: ThreadPoolExecutor, throttle: Throttle
    ) -> None:
        self._database = database
        self._tables = tables
        self._threads = threads
        self._throttle = throttle

    def commit(self, commit: Commit) -> None:
        """Do *commit*. Raises :class:`FencedError`, :class:`LogInputError`."""
        shares = list(_shares(commit, self._tables.shards))
        if sum(len(share.ids) for share in shares) > TOGETHER and len(shares) > 1:
            list(self._threads.map(self._store, [commit] * len(shares), shares))
            shares = []
        self._finish(commit, shares)

    def _store(self, commit: Commit, share: ShardBatch) -> None:
        """Put the rows of *share* into their table, above the pointer."""
        self._throttle.wait([self._key(share)])

        def work(pooled: PooledConnection, again: bool) -> None:
            leftover = self._check(pooled.connection, commit)
            if not (again and self._is_stored(pooled.connection, share)):
                self._insert(pooled, share, leftover)

        self._database.transaction(work)

    def _finish(self, commit: Commit, shares: Sequence[ShardBatch]) -> None:
        """Move the pointer, in one transaction with the rows of *shares*."""
        self._throttle.wait([*map(self._key, shares), self._tables.first_pointers])

        def work(pooled: PooledConnection, again: bool) -> None:
            leftover = self._move(pooled.connection, commit, again)
            if leftover is not None:
                for share in shares:
                    self._insert(pooled, share, leftover)
                self._remember(pooled.connection, commit)

        self._database.transaction(work)

    def _move(self, connection: DatabaseConnection, commit: Commit, again: bool) -> int | None:
        """Move lease row and pointer; how far leftovers of another publisher go, None where it was done before."""
        tables = self._tables
        last, where = commit.last_id, (tables.queue, tables.shards)
        if connection.execute(sql.MOVE_LAST, last, *where, commit.epoch, commit.previous_id) != 1:
            if again and self._lease(connection, sql.LEASE)[:2] == (commit.epoch, last):
                return None
            raise _fenced(tables.queue)
        pointer = sql.MOVE_POINTER.format(tables.first_pointers)
        if connection.execute(pointer, last, tables.key(), commit.previous_id) != 1:
            raise _foreign(tables.queue, commit.previous_id + 1)
        return self._lease(connection, sql.LEASE)[2]

    def _check(self, connection: DatabaseConnection, commit: Commit) -> int:
        """Hold lease row and pointer until the transaction ends; how far leftovers of another publisher go."""
        epoch, last_id, leftover = self._lease(connection, sql.LEASE_SHARED)
        if (epoch, last_id) != (commit.epoch, commit.previous_id):
            raise _fenced(self._tables.queue)
        statement = sql.POINTER_SHARED.format(self._tables.first_pointers)
        if [int(row[0]) for row in connection.rows(statement, self._tables.key())] != [commit.previous_id]:
            raise _foreign(self._tables.queue, commit.previous_id + 1)
        return leftover

    def _lease(self, connection: DatabaseConnection, statement: str) -> tuple[int, int, int]:
        rows = connection.rows(statement, self._tables.queue, self._tables.shards)
        if not rows:
            raise _fenced(self._tables.queue)
        epoch, last_id, leftover = map(int, rows[0])
        return epoch, last_id, leftover

    def _insert(self, pooled: PooledConnection, share: ShardBatch, leftover: int) -> None:
        table = self._tables.rows(share.shard)
        if share.ids.start <= leftover:
            pooled.connection.execute(sql.DELETE_ROWS.format(table), share.ids.start, min(share.ids[-1], leftover))
        try:
            for ids, bodies in _packets(share, pooled.statement_bytes):
                rows = ", ".join([f"({number}, ?)" for number in ids])
                pooled.connection.execute(sql.INSERT_ROWS.format(table) + rows, *bodies)
        except ServerError as error:
            if error.code != DUPLICATE:
                raise
            raise _foreign(self._tables.queue, share.ids.start) from error

    def _is_stored(self, connection: DatabaseConnection, share: ShardBatch) -> bool:
        """Whether an earlier try, whose reply was lost, has put exactly these rows there."""
        statement = sql.READ_ROWS.format(self._tables.rows(share.shard))
        found = connection.rows(statement, share.ids.start, share.ids[-1])
        return [(int(number), data) for number, data in found] == list(zip(share.ids, share.bodies, strict=True))

    def _remember(self, connection: DatabaseConnection, commit: Commit) -> None:
        if commit.sequence is not None:
            key, sequence = producer_key(commit.producer).encode(), str(commit.sequence).encode()
            connection.execute(sql.SET_STATE, self._tables.queue, self._tables.shards, key, sequence)

    def _key(self, share: ShardBatch) -> str:
        return self._tables.rows(share.shard)


def _shares(commit: Commit, shards: int) -> Iterator[ShardBatch]:
    bodies = [body for block in commit.blocks for body in _bodies(block.data)]
    first = commit.previous_id + 1
    if len(bodies) != commit.last_id - commit.previous_id:
        raise LogInputError(f"{len(bodies)} messages do not match the ids {first} to {commit.last_id}")
    for offset in range(min(shards, len(bodies))):
        start = first + offset
        yield ShardBatch(start % shards, range(start, commit.last_id + 1, shards), bodies[offset::shards])


def _bodies(data: bytes) -> list[bytes]:
    block = Block(data)
    if any(lengths_of(column).any() for column in block.decode(_NOT_KEPT).columns):
        raise LogInputError("the nerve layout stores only message bodies: omit source, key and headers")
    found: list[bytes] = block.decode(["body"]).column(0).to_pylist()
    return found


def _packets(share: ShardBatch, packet_bytes: int) -> Iterator[tuple[range, Sequence[bytes]]]:
    """As many rows together as one statement takes, however its values are escaped."""
    room = packet_bytes - _STATEMENT_BYTES
    start = size = 0
    for position, body in enumerate(share.bodies):
        taken = len(body) + body.count(b"\\") + body.count(b"'") + _ROW_BYTES
        if taken > room:
            raise MessageTooLargeError(
                f"a message of {len(body):,} bytes takes {taken:,} bytes in a statement, but the packet limit of the "
                f"server ({packet_bytes:,} bytes) leaves {room:,} bytes for it: increase max_allowed_packet of the "
                "server, or send smaller messages"
            )
        if size + taken > room or position - start == MOST_ROWS:
            yield share.ids[start:position], share.bodies[start:position]
            start, size = position, 0
        size += taken
    yield share.ids[start:], share.bodies[start:]


def _fenced(queue: str) -> FencedError:
    return FencedError(
        f"another writer has taken over queue {queue!r}; the last data of this writer was not stored: "
        "stop one of the two, and append the data again"
    )


def _foreign(queue: str, first_id: int) -> ForeignPublisherError:
    return ForeignPublisherError(
        f"another publisher is writing to queue {queue!r} without a lease: from id {first_id} on, the "
        "tables differ from what this writer wrote, and its last messages were not confirmed. A queue "
        "can have only one publisher: stop the other publisher"
    )
