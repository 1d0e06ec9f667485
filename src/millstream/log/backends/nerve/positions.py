"""The positions of consumers: pointers as in the original, and additional data of Millstream.

A pointer that is not where we left it was moved by a receiver of the original. That counts as one more version of the
state, so that a reader of ours that is open at that moment is fenced, and the next one continues there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.log.backend import VersionedValue
from millstream.log.backends.database.pool import PooledConnection
from millstream.log.backends.nerve import statements as sql
from millstream.log.backends.nerve.database import NerveDatabase
from millstream.log.backends.nerve.tables import QueueTables
from millstream.log.consumer_positions import ConsumerPosition, consumer_key, decode_position, encode_position
from millstream.log.errors import LogInputError

PREFIX = "consumer/"
_LONGEST_KEY = 255


class ConsumerPositions:
    """The consumers of one queue."""

    def __init__(self, database: NerveDatabase, tables: QueueTables) -> None:
        self._database = database
        self._tables = tables

    def get(self, consumer: str) -> VersionedValue:
        """The position of *consumer* as a state."""
        key = self._key(consumer)
        pointers = self._tables.first_pointers
        if not self._database.has_side_tables:
            rows = self._database.rows(sql.POSITION_OF_ORIGINAL.format(pointers), key)
            return self._state(rows[0] if rows else (None,) * 5, consumer)
        (row,) = self._database.rows(sql.POSITION.format(pointers), *self._side_key(consumer), key)
        return self._state(row, consumer)

    def put(self, consumer: str, value: bytes, version: int) -> bool:
        """Write version *version* + 1, if the present version is *version*."""
        key, pointers = self._key(consumer), self._tables.first_pointers
        pointer = decode_position(VersionedValue(1, value)).pointer

        def work(pooled: PooledConnection, again: bool) -> bool:
            statement = sql.POSITION_ALONE.format(pointers)
            (row,) = pooled.connection.rows(statement, *self._side_key(consumer), key)
            found = self._state(row, consumer)
            if again and found == VersionedValue(version + 1, value):
                return True
            if found.version != version:
                return False
            pooled.connection.execute(sql.SET_POINTER.format(pointers), key, pointer)
            pooled.connection.execute(sql.PUT_POSITION, *self._side_key(consumer), version + 1, pointer, value)
            return True

        return self._database.transaction(work)

    def all(self) -> Mapping[str, VersionedValue]:
        """The positions of all consumers."""
        start = self._tables.key()
        rows = self._database.rows(sql.POINTERS.format(self._tables.first_pointers))
        names = [str(key)[len(start) :] for key, _ in rows if str(key).startswith(start) and str(key) != start]
        return {name: self.get(name) for name in names}

    def _side_key(self, consumer: str) -> tuple[str, int, bytes]:
        return self._tables.queue, self._tables.shards, consumer_key(consumer).encode()

    def _key(self, consumer: str) -> str:
        key = self._tables.key(consumer)
        if len(key) > _LONGEST_KEY:
            raise LogInputError(
                f"the names of queue {self._tables.queue!r} and consumer {consumer[:80]!r} together have more than "
                f"{_LONGEST_KEY - 1} characters: use a shorter consumer name"
            )
        return key

    def _state(self, row: Sequence[Any], consumer: str) -> VersionedValue:
        """The state of *consumer* that a row of the statement POSITION stands for."""
        version, left_at, value, found_key, pointer = row
        if found_key is not None and str(found_key) != self._key(consumer):
            other = str(found_key).removeprefix(self._tables.key())
            raise LogInputError(
                f"consumer {consumer!r} of queue {self._tables.queue!r} would share a pointer with {other!r}, because "
                "this database treats both names as equal: use another consumer name"
            )
        version, left_at, pointer = int(version or 0), int(left_at or 0), int(pointer or 0)
        if pointer == left_at:
            return VersionedValue(version, bytes(value) if value is not None else b"")
        return VersionedValue(version + 1, encode_position(ConsumerPosition(pointer)))
