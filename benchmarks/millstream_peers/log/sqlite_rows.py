"""A row a message in SQLite, in the layout of the seed document nerve, as durable as our log.

Four shard tables by id, a table of pointers, the pointer moved in the same transaction as the rows (write-ahead log,
synchronous FULL).
"""

from __future__ import annotations

import heapq
import sqlite3
import threading
from collections.abc import Iterator

from millstream.bench.log.protocol import Part, QueueLocation
from millstream.core.clock import SystemClock
from millstream_peers.log.grouped import GroupingSender

SHARDS = 4
READ_IDS = 50_000  # at a time, as in the document's receiver
_NAP = 0.001  # seconds until a reader looks again; the document's waits half a second


def _open(place: QueueLocation) -> sqlite3.Connection:
    db = sqlite3.connect(place.url, isolation_level=None, check_same_thread=False, timeout=60)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    for shard in range(SHARDS):
        db.execute(f"CREATE TABLE IF NOT EXISTS queue_bench_004_{shard:04d} (id INTEGER PRIMARY KEY, data BLOB)")
    db.execute("CREATE TABLE IF NOT EXISTS queue_bench_004_0000_pointers (id TEXT PRIMARY KEY, ptr INTEGER)")
    return db


def _move_pointer(db: sqlite3.Connection, name: str, last_id: int) -> None:
    db.execute("INSERT OR REPLACE INTO queue_bench_004_0000_pointers VALUES (?, ?)", (name, last_id))


class SqliteRowSender(GroupingSender):
    """Writes rows."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._db = _open(place)

    def close(self) -> None:
        super().close()
        self._db.close()

    def _commit(self, bodies: list[bytes], first: int) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        rows = list(enumerate(bodies, first))
        for shard in range(SHARDS):
            mine = rows[(shard - first) % SHARDS :: SHARDS]
            self._db.executemany(f"INSERT INTO queue_bench_004_{shard:04d} VALUES (?, ?)", mine)  # noqa: S608
        _move_pointer(self._db, "bench:", first + len(bodies) - 1)
        self._db.execute("COMMIT")


class SqliteRowReceiver:
    """Merges the rows of the shards by id."""

    def __init__(self, place: QueueLocation) -> None:
        self._db = _open(place)
        self._clock, self._nap = SystemClock(), threading.Condition()

    def follow(self, total: int) -> Iterator[Part]:
        first = 1
        while first <= total:
            pointer = self._db.execute("SELECT ptr FROM queue_bench_004_0000_pointers WHERE id = 'bench:'").fetchone()
            last = min(first + READ_IDS - 1, pointer[0] if pointer else 0)
            if last < first:
                with self._nap:
                    self._clock.wait(self._nap, _NAP)
                continue
            ids: list[int] = []
            bodies: list[bytes] = []
            for number, body in heapq.merge(*(self._read(shard, first, last) for shard in range(SHARDS))):
                ids.append(number)
                bodies.append(body)
            _move_pointer(self._db, "bench:reader", last)
            yield ids, bodies
            first = last + 1

    def close(self) -> None:
        self._db.close()

    def _read(self, shard: int, first: int, last: int) -> list[tuple[int, bytes]]:
        statement = f"SELECT id, data FROM queue_bench_004_{shard:04d} WHERE id BETWEEN ? AND ? ORDER BY id"  # noqa: S608
        return self._db.execute(statement, (first, last)).fetchall()
