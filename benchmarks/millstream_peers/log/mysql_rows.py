"""A row a message in MariaDB: the tables, the statements and the order of events of the seed document nerve.

Four shard tables by id; rows of a shard go in one statement, at most 10,000, shards at once on connections of their
own, without a transaction; then the writer pointer is moved, and only then are senders told. A reader asks for 50,000
ids at a time, by name, from all shards at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millstream.bench.log.protocol import QueueLocation
from millstream.log.backends.mysql.address import parse_address
from millstream.log.backends.mysql.pymysql_connection import PymysqlConnection, connect_pymysql, literal
from millstream_peers.log.grouped import MOST_ROWS, GroupingSender, ShardedReceiver

SHARDS = 4
_STATEMENT_BYTES = 8 << 20

_TABLE = "CREATE TABLE IF NOT EXISTS `{}_{:04d}` (id BIGINT UNSIGNED PRIMARY KEY, data LONGBLOB)"
_POINTERS = "CREATE TABLE IF NOT EXISTS `{}_0000_pointers` (id VARCHAR(255) PRIMARY KEY, ptr BIGINT UNSIGNED)"
_INSERT = b"INSERT INTO `%b_%04d` VALUES %b ON DUPLICATE KEY UPDATE data = VALUES(data)"
_MOVE = "INSERT INTO `{}_0000_pointers` VALUES (?, ?) ON DUPLICATE KEY UPDATE ptr = VALUES(ptr)"
_POINTER = "SELECT ptr FROM `{}_0000_pointers` WHERE id = ?"
_READ = "SELECT id, data FROM `{}_{:04d}` WHERE id IN ({}) ORDER BY id"


class _Shards:
    """Connections to the shards of one queue, which is made where it is absent."""

    def __init__(self, place: QueueLocation) -> None:
        self.name = f"queue_{place.queue}_{SHARDS:03d}"
        self.connections = [_connect(place) for _ in range(SHARDS)]
        self.threads = ThreadPoolExecutor(SHARDS)
        for shard in range(SHARDS):
            self.connections[0].execute(_TABLE.format(self.name, shard))
        self.connections[0].execute(_POINTERS.format(self.name))

    def move(self, pointer: str, last_id: int) -> None:
        self.connections[0].execute(_MOVE.format(self.name), pointer, last_id)

    def close(self) -> None:
        self.threads.shutdown()
        for connection in self.connections:
            connection.close()


class MysqlRowSender(GroupingSender):
    """Writes rows."""

    most_rows = SHARDS * MOST_ROWS

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._shards = _Shards(place)

    def close(self) -> None:
        super().close()
        self._shards.close()

    def _commit(self, bodies: list[bytes], first: int) -> None:
        list(self._shards.threads.map(self._insert, range(SHARDS), [bodies] * SHARDS, [first] * SHARDS))
        self._shards.move("writer:", first + len(bodies) - 1)

    def _insert(self, shard: int, bodies: list[bytes], first: int) -> None:
        offset = (shard - first) % SHARDS
        mine = bodies[offset::SHARDS]
        ids = range(first + offset, first + len(bodies), SHARDS)
        rows = [b"(%d,%b)" % (number, literal(body)) for number, body in zip(ids, mine, strict=True)]
        step = max(min(MOST_ROWS, _STATEMENT_BYTES // (max(map(len, rows), default=0) + 2)), 1)
        for start in range(0, len(rows), step):
            part = b",".join(rows[start : start + step])
            self._shards.connections[shard].execute_bytes(_INSERT % (self._shards.name.encode(), shard, part))


class MysqlRowReceiver(ShardedReceiver):
    """Merges the rows of the shards by id."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._shards = _Shards(place)

    def close(self) -> None:
        self._shards.close()

    def _written(self) -> int:
        rows = self._shards.connections[0].rows(_POINTER.format(self._shards.name), "writer:")
        return int(rows[0][0]) if rows else 0

    def _read(self, first: int, last: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        return self._shards.threads.map(self._read_shard, range(SHARDS), [first] * SHARDS, [last] * SHARDS)

    def _move_reader(self, last: int) -> None:
        self._shards.move("reader:", last)

    def _read_shard(self, shard: int, first: int, last: int) -> Sequence[tuple[Any, ...]]:
        ids = range(first + (shard - first) % SHARDS, last + 1, SHARDS)
        if not ids:
            return []
        return self._shards.connections[shard].rows(_READ.format(self._shards.name, shard, ",".join(map(str, ids))))


def _connect(place: QueueLocation) -> PymysqlConnection:
    connection = connect_pymysql(parse_address(place.url))
    connection.execute("SET autocommit = 1")
    return connection
