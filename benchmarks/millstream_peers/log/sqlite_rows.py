"""A row a message in SQLite, in the layout of the seed document nerve, as durable as our log.

Four shard tables by id, a table of pointers, the pointer moved in the same transaction as the rows (write-ahead log,
synchronous FULL).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from millstream.bench.log.protocol import QueueLocation
from millstream_peers.log.grouped import GroupingSender, ShardedReceiver

SHARDS = 4


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


class SqliteRowReceiver(ShardedReceiver):
    """Merges the rows of the shards by id."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._db = _open(place)

    def close(self) -> None:
        self._db.close()

    def _written(self) -> int:
        row = self._db.execute("SELECT ptr FROM queue_bench_004_0000_pointers WHERE id = 'bench:'").fetchone()
        return int(row[0]) if row else 0

    def _read(self, first: int, last: int) -> Iterator[list[tuple[int, bytes]]]:
        for shard in range(SHARDS):
            statement = f"SELECT id, data FROM queue_bench_004_{shard:04d} WHERE id BETWEEN ? AND ? ORDER BY id"  # noqa: S608
            yield self._db.execute(statement, (first, last)).fetchall()

    def _move_reader(self, last: int) -> None:
        _move_pointer(self._db, "bench:reader", last)
