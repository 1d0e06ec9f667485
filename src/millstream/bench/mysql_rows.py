"""The peer of our log in MariaDB: a row a message, in the tables and by the statements of the seed document nerve.

Four shard tables by id; rows of a shard go in one statement, at most 10,000, shards at once on connections of their
own, without a transaction; then the writer pointer is moved, and only then are senders told. A reader asks for 50,000
ids at a time, by name, from all shards at once.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millstream.bench.rows import MOST_ROWS, SHARDS, GroupedRows
from millstream.core.clock import Clock
from millstream.log.mysql.place import Place
from millstream.log.mysql.text_driver import TextConnection, connect_text, literal

_READ_IDS = 50_000
_STATEMENT_BYTES = 8 << 20
_NAP = 0.001  # seconds until a reader looks again; the document's waits half a second

_TABLE = "CREATE TABLE `{}_{:04d}` (id BIGINT UNSIGNED PRIMARY KEY, data LONGBLOB)"
_POINTERS = "CREATE TABLE `{}_0000_pointers` (id VARCHAR(255) PRIMARY KEY, ptr BIGINT UNSIGNED)"
_INSERT = b"INSERT INTO `%b_%04d` VALUES %b ON DUPLICATE KEY UPDATE data = VALUES(data)"
_MOVE = "INSERT INTO `{}_0000_pointers` VALUES (?, ?) ON DUPLICATE KEY UPDATE ptr = VALUES(ptr)"
_POINTER = "SELECT ptr FROM `{}_0000_pointers` WHERE id = ?"
_READ = "SELECT id, data FROM `{}_{:04d}` WHERE id IN ({}) ORDER BY id"


class MysqlRows(GroupedRows):
    """A log of one row a message, in tables *name* of the database at *place*."""

    most_rows = SHARDS * MOST_ROWS

    def __init__(self, place: Place, name: str, clock: Clock) -> None:
        super().__init__()
        self._name = f"queue_{name}_{SHARDS:03d}"
        self._clock = clock
        self._nap = threading.Condition()
        self._writing = [_connect(place) for _ in range(SHARDS)]
        self._reading = [_connect(place) for _ in range(SHARDS)]
        self._threads = ThreadPoolExecutor(2 * SHARDS)
        for shard in range(SHARDS):
            self._writing[0].execute(_TABLE.format(self._name, shard))
        self._writing[0].execute(_POINTERS.format(self._name))

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """All messages in order: the shards' rows merged by id, and the pointer of a consumer moved after each part."""
        return self.follow(self.last_id)

    def follow(self, total: int) -> Iterator[tuple[int, bytes]]:
        """The first *total* messages as they come in."""
        first = 1
        while first <= total:
            rows = self._reading[0].rows(_POINTER.format(self._name), "writer:")
            last = min(first + _READ_IDS - 1, rows[0][0] if rows else 0)
            if last < first:
                with self._nap:
                    self._clock.wait(self._nap, _NAP)
                continue
            yield from heapq.merge(*self._threads.map(self._read, range(SHARDS), [first] * SHARDS, [last] * SHARDS))
            self._reading[0].execute(_MOVE.format(self._name), "reader:", last)
            first = last + 1

    def close(self) -> None:
        """Let go of the database."""
        self._threads.shutdown()
        for connection in [*self._writing, *self._reading]:
            connection.close()

    def _read(self, shard: int, first: int, last: int) -> Sequence[tuple[Any, ...]]:
        ids = range(first + (shard - first) % SHARDS, last + 1, SHARDS)
        if not ids:
            return []
        return self._reading[shard].rows(_READ.format(self._name, shard, ",".join(map(str, ids))))

    def _commit(self, bodies: list[bytes]) -> None:
        first = self.last_id + 1
        list(self._threads.map(self._insert, range(SHARDS), [bodies] * SHARDS, [first] * SHARDS))
        self._writing[0].execute(_MOVE.format(self._name), "writer:", first + len(bodies) - 1)

    def _insert(self, shard: int, bodies: list[bytes], first: int) -> None:
        offset = (shard - first) % SHARDS
        mine = bodies[offset::SHARDS]
        ids = range(first + offset, first + len(bodies), SHARDS)
        rows = [b"(%d,%b)" % (number, literal(body)) for number, body in zip(ids, mine, strict=True)]
        step = max(min(MOST_ROWS, _STATEMENT_BYTES // (max(map(len, rows), default=0) + 2)), 1)
        for start in range(0, len(rows), step):
            self._writing[shard].execute_bytes(
                _INSERT % (self._name.encode(), shard, b",".join(rows[start : start + step]))
            )


def _connect(place: Place) -> TextConnection:
    connection = connect_text(place)
    connection.execute("SET autocommit = 1")
    return connection
