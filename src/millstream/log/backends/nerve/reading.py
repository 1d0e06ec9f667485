"""Reading rows from all tables of a queue at once, merged by id into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log.backend import StoredBlock
from millstream.log.backends.nerve import statements as sql
from millstream.log.backends.nerve.database import NerveDatabase
from millstream.log.backends.nerve.tables import QueueTables
from millstream.log.block import encode_block
from millstream.log.block_header import BlockOrigin
from millstream.log.encoding.columns import Columns
from millstream.log.errors import DamagedLogError
from millstream.log.ids import IdRange

MOST_IDS = 50_000
"""As many ids as are read at once (seed document nerve; the original's limit)."""

UNKNOWN_TIME = 0
"""The times of a message in this layout, which keeps none."""

_FIRST_SPAN = 1_000
_MOST_RUNS = 100  # blocks that are made of one answer; where rows are missing, there may be one for each row

Ids = npt.NDArray[np.int64]


class RowReader:
    """Reads the rows of one queue. Thread-safe."""

    def __init__(self, database: NerveDatabase, tables: QueueTables, threads: ThreadPoolExecutor) -> None:
        self._database = database
        self._tables = tables
        self._threads = threads
        self._span = _FIRST_SPAN

    def read(self, ids: IdRange, max_bytes: int) -> Sequence[StoredBlock]:
        """The first rows among *ids*, as blocks without a hole in them; nothing where there is none."""
        first = ids.first
        while first <= ids.last:
            part = self._fitting(IdRange(first, min(ids.last, first + self._span - 1)), max_bytes)
            found, bodies = self._rows(part)
            if len(found):
                return list(_blocks(self._tables.queue, found, bodies))
            first = self.first_id(IdRange(part.last + 1, ids.last)) or ids.last + 1
        return []

    def first_id(self, ids: IdRange) -> int | None:
        """The least of *ids* that has a row."""
        return min(self._each(sql.FIRST_ID, ids), default=None)

    def last_id(self, ids: IdRange) -> int | None:
        """The greatest of *ids* that has a row."""
        return max(self._each(sql.LAST_ID, ids), default=None)

    def strays(self, ids: IdRange) -> int:
        """How many rows lie in a table where their ids do not belong."""
        count = self._tables.shards

        def find(shard: int) -> int:
            statement = sql.STRAYS.format(self._tables.rows(shard))
            ((found,),) = self._database.rows(statement, ids.first, ids.last, count, shard)
            return int(found)

        return sum(self._threads.map(find, range(count)))

    def _fitting(self, ids: IdRange, max_bytes: int) -> IdRange:
        """The beginning of *ids* whose rows have at most *max_bytes*, or a single id; learns how many that are."""
        while len(ids) > 1:
            size = sum(self._each(sql.BYTES, ids))
            if size <= max_bytes:
                if len(ids) == self._span and 2 * size <= max_bytes:
                    self._span = min(2 * self._span, MOST_IDS)
                return ids
            ids = IdRange(ids.first, ids.first + max(len(ids) * max_bytes // (2 * size), 1) - 1)
            self._span = max(len(ids), 2)
        return ids

    def _each(self, statement: str, ids: IdRange) -> list[int]:
        """The number that *statement* has for *ids* in each table, where it has one."""
        if not len(ids):
            return []

        def ask(shard: int) -> Any:
            return self._database.rows(statement.format(self._tables.rows(shard)), ids.first, ids.last)[0][0]

        shards = _shards_of(ids, self._tables.shards)
        return [int(found) for found in self._threads.map(ask, shards) if found is not None]

    def _rows(self, ids: IdRange) -> tuple[Ids, Any]:
        """The ids that have rows, in order, and their data as an Arrow array."""

        def fetch(shard: int) -> Sequence[tuple[int, bytes]]:
            return self._database.rows(sql.READ_ROWS.format(self._tables.rows(shard)), ids.first, ids.last)

        shards = _shards_of(ids, self._tables.shards)
        parts = list(self._threads.map(fetch, shards))
        numbers = np.array([row[0] for rows in parts for row in rows], np.int64)
        bodies = pa.array([row[1] for rows in parts for row in rows], pa.binary())
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        if len(numbers) > 1 and not (np.diff(numbers) > 0).all():
            twice = int(numbers[1:][np.diff(numbers) <= 0][0])
            raise DamagedLogError(
                f"id {twice} of queue {self._tables.queue!r} is in two tables, one of which is wrong: "
                f"`millstream log verify {self._tables.queue}` lists all damage"
            )
        return numbers, bodies.take(pa.array(order))


def _shards_of(ids: IdRange, shards: int) -> Sequence[int]:
    """The tables in which rows of *ids* may lie; all of them where there are more ids than tables."""
    if len(ids) >= shards:
        return range(shards)
    return sorted({number % shards for number in ids})


def _blocks(queue: str, ids: Ids, bodies: Any) -> Iterator[StoredBlock]:
    breaks = np.flatnonzero(np.diff(ids) > 1) + 1
    starts = [0, *breaks.tolist()][:_MOST_RUNS]
    stops = [*breaks.tolist(), len(ids)][:_MOST_RUNS]
    for start, stop in zip(starts, stops, strict=True):
        columns = Columns(bodies[start:stop], UNKNOWN_TIME)
        block = encode_block(columns, int(ids[start]), BlockOrigin(queue), compression="plain")
        yield StoredBlock(block.header.first_id, block.header.last_id, block.data)


class TableSize(msgspec.Struct, frozen=True):
    """What the tables of a queue take, in bytes, as the server estimates it; and a row of them."""

    total: int
    row: int


def table_sizes(database: NerveDatabase, tables: QueueTables) -> TableSize:
    """How much the rows of *tables* take."""
    found = [database.rows(sql.SIZE, tables.rows(shard).strip("`")) for shard in range(tables.shards)]
    rows = [row for (row,) in found]
    return TableSize(sum(int(total or 0) for total, _ in rows), max(int(row or 0) for _, row in rows))
