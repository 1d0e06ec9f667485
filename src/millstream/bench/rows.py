"""The peer of our log: a row a message in SQLite, in the layout of the seed document nerve.

Four shard tables by id, a table of pointers, the pointer moved in the same transaction as the rows; senders share
transactions just as ours do, and a transaction is as durable (write-ahead log, synchronous FULL).
"""

from __future__ import annotations

import heapq
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

SHARDS = 4
MOST_ROWS = 10_000  # in a transaction, as in the document's shard buffer
_READ_IDS = 50_000  # at a time, as in the document's receiver


class GroupedRows(ABC):
    """Senders that share transactions; a peer says how one is committed."""

    most_rows = MOST_ROWS

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: deque[Sequence[bytes]] = deque()
        self._given = self.last_id = 0
        self._committing = False

    def append(self, bodies: Sequence[bytes]) -> None:
        """Store *bodies* and return once they are durable."""
        with self._changed:
            self._pending.append(bodies)
            self._given += len(bodies)
            mine = self._given
            while self.last_id < mine:
                if self._committing:
                    self._changed.wait()
                else:
                    self._lead()

    def _lead(self) -> None:
        bodies: list[bytes] = []
        while self._pending and len(bodies) < self.most_rows:
            bodies += self._pending.popleft()
        self._committing = True
        self._changed.release()
        try:
            self._commit(bodies)
        finally:
            self._changed.acquire()
            self._committing = False
            self.last_id += len(bodies)
            self._changed.notify_all()

    @abstractmethod
    def _commit(self, bodies: list[bytes]) -> None:
        """Store *bodies* after :attr:`last_id`, durably."""


class RowLog(GroupedRows):
    """A log of one row a message."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        for shard in range(SHARDS):
            self._db.execute(f"CREATE TABLE queue_bench_004_{shard:04d} (id INTEGER PRIMARY KEY, data BLOB)")
        self._db.execute("CREATE TABLE queue_bench_004_0000_pointers (id TEXT PRIMARY KEY, ptr INTEGER)")

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """All messages in order: the shards' rows merged by id, and the pointer of a consumer moved after each part."""
        for first in range(1, self.last_id + 1, _READ_IDS):
            last = min(first + _READ_IDS - 1, self.last_id)
            shards = [
                self._db.execute(
                    f"SELECT id, data FROM queue_bench_004_{shard:04d} WHERE id BETWEEN ? AND ? ORDER BY id",  # noqa: S608
                    (first, last),
                ).fetchall()
                for shard in range(SHARDS)
            ]
            yield from heapq.merge(*shards)
            self._move_pointer("bench:reader", last)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _commit(self, bodies: list[bytes]) -> None:
        first = self.last_id + 1
        self._db.execute("BEGIN IMMEDIATE")
        rows = list(enumerate(bodies, first))
        for shard in range(SHARDS):
            mine = rows[(shard - first) % SHARDS :: SHARDS]
            self._db.executemany(f"INSERT INTO queue_bench_004_{shard:04d} VALUES (?, ?)", mine)  # noqa: S608
        self._move_pointer("bench:", first + len(bodies) - 1)
        self._db.execute("COMMIT")

    def _move_pointer(self, name: str, last_id: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO queue_bench_004_0000_pointers VALUES (?, ?)", (name, last_id))
