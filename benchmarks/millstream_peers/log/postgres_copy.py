"""A row a message in PostgreSQL, copied in binary, the pointer in the same transaction, synchronous_commit on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from millstream.bench.log.protocol import Part, QueueLocation
from millstream.core.clock import SystemClock
from millstream_peers.log.grouped import GroupingSender

_READ = 50_000
_NAP = 0.001


class PostgresSender(GroupingSender):
    """Copies rows."""

    def __init__(self, place: QueueLocation) -> None:
        super().__init__()
        self._connection, self._queue = _connect(place), place.queue

    def close(self) -> None:
        super().close()
        self._connection.close()

    def _commit(self, bodies: list[bytes], first: int) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            with cursor.copy(f"COPY {self._queue} (id, data) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int8", "bytea"])
                for row in enumerate(bodies, first):
                    copy.write_row(row)
            last = first + len(bodies) - 1
            cursor.execute(f"UPDATE {self._queue}_pointers SET ptr = %s WHERE id = 'writer'", (last,))  # noqa: S608


class PostgresReceiver:
    """Reads ranges of rows in binary."""

    def __init__(self, place: QueueLocation) -> None:
        self._connection, self._queue = _connect(place), place.queue
        self._clock, self._nap = SystemClock(), threading.Condition()

    def follow(self, total: int) -> Iterator[Part]:
        last = 0
        while last < total:
            with self._connection.cursor(binary=True) as cursor:
                statement = f"SELECT id, data FROM {self._queue} WHERE id > %s ORDER BY id LIMIT {_READ}"  # noqa: S608
                rows: list[tuple[Any, ...]] = cursor.execute(statement, (last,)).fetchall()
                if not rows:
                    with self._nap:
                        self._clock.wait(self._nap, _NAP)
                    continue
                ids: list[int] = []
                bodies: list[bytes] = []
                for number, body in rows:
                    ids.append(number)
                    bodies.append(body)
                last = ids[-1]
                cursor.execute(f"UPDATE {self._queue}_pointers SET ptr = %s WHERE id = 'reader'", (last,))  # noqa: S608
            yield ids, bodies

    def close(self) -> None:
        self._connection.close()


def _connect(place: QueueLocation) -> Any:
    import psycopg

    connection = psycopg.connect(place.url, autocommit=True)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {place.queue} (id int8 PRIMARY KEY, data bytea)")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {place.queue}_pointers (id text PRIMARY KEY, ptr int8)")
    connection.execute(
        f"INSERT INTO {place.queue}_pointers VALUES ('writer', 0), ('reader', 0) ON CONFLICT DO NOTHING"  # noqa: S608
    )
    return connection
