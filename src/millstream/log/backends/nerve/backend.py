"""Logs in the nerve table layout: a row a message, in several tables by id, and a pointer over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.clock import Clock
from millstream.core.timestamps import time_text
from millstream.log.backend import BlockStatistics, Commit, Head, StoredBlock, VersionedValue
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver, ServerError, Value
from millstream.log.backends.database.pool import RETRY_SECONDS, PooledConnection
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.backends.mysql.error_codes import DUPLICATE
from millstream.log.backends.mysql.server import read_durability
from millstream.log.backends.mysql.statements import sql as mysql
from millstream.log.backends.nerve import statements as sql
from millstream.log.backends.nerve.address import NerveAddress
from millstream.log.backends.nerve.database import NerveDatabase
from millstream.log.backends.nerve.positions import PREFIX, ConsumerPositions
from millstream.log.backends.nerve.reading import MOST_IDS, RowReader, table_sizes
from millstream.log.backends.nerve.tables import QueueTables
from millstream.log.backends.nerve.throttle import Throttle
from millstream.log.backends.nerve.writing import RowWriter
from millstream.log.errors import DamagedLogError, LogInputError, WriterBusyError
from millstream.log.ids import MAX_ID, BlockRange, IdRange, IndexEntry
from millstream.log.kinds import KIND
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks

WATCH_SECONDS = 1.0
"""For so long a new writer watches rows above the pointer: a publisher at work moves them many times in a second."""

MOST_LEFTOVERS = 1_000_000
"""More rows above the pointer than a publisher can have had under way mean that the pointer is wrong."""

_MOST_THREADS = 64


class _Queue(msgspec.Struct, frozen=True):
    tables: QueueTables
    reader: RowReader
    writer: RowWriter
    positions: ConsumerPositions


class NerveBackend:
    """A backend over the queues at *address*; see :class:`millstream.log.backends.mysql.MysqlBackend`.

    It keeps the bodies of messages alone. Rows turn into blocks as they are read, without times.
    """

    one_host = False

    def __init__(
        self,
        address: NerveAddress,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = RETRY_SECONDS,
        driver: DatabaseDriver[MysqlAddress] | None = None,
    ) -> None:
        self._address = address
        self._clock = clock
        self._throttle = Throttle(clock, address.rps)
        self._queues: dict[str, _Queue] = {}
        self._database = NerveDatabase(
            address, clock, create=create, read_only=read_only, patience=patience, driver=driver
        )
        self._threads = ThreadPoolExecutor(min(max(address.shards, 4), _MOST_THREADS), "millstream-nerve")

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def durability(self) -> str:
        return self._database.pool.call(lambda pooled: read_durability(pooled.connection))

    def logs(self) -> Sequence[str]:
        wanted = self._address.shards
        return sorted(
            q for q, found in self._database.queues().items() if found.shards and wanted in {0, *found.shards}
        )

    def kinds(self) -> Mapping[str, str]:
        rows = self._database.rows(sql.STATE_OF_ALL, KIND.encode()) if self._database.has_side_tables else ()
        found = {str(queue): bytes(value).decode() for queue, value in rows}
        return {log: found.get(log, "") for log in self.logs()}

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        if log not in self._queues or not self._database.has_side_tables:
            is_new = log not in self._database.queues()
            self._database.create(log)
            if is_new:
                self.put_state(log, KIND, kind.encode(), version=0)
            if is_new and first_id > 1:
                self._begin_at(log, first_id)

    def upgrade(self) -> None:
        """Nothing: the layout is nerve's."""

    def rename(self, log: str, new: str, *, epoch: int) -> bool:  # noqa: ARG002
        return False  # the names are in those of the tables

    def head(self, log: str) -> Head:
        tables = self._queue(log).tables
        if self._database.has_side_tables:
            statement = sql.HEAD.format(tables.first_pointers)
            where = (tables.queue, tables.shards)
            rows = self._database.rows(statement, tables.key(), *where, *where, WATERMARKS.encode())
        else:
            rows = self._database.rows(sql.HEAD_OF_ORIGINAL.format(tables.first_pointers), tables.key())
        pointer, epoch, holder, until, value = rows[0] if rows else (0, 0, b"", 0, b"")
        last_id, epoch, until = int(pointer or 0), int(epoch or 0), int(until or 0)
        head = Head(last_id=last_id, epoch=epoch, holder=bytes(holder or b""), lease_until=until)
        return head.with_watermarks(bytes(value or b""))

    def lease_time(self) -> int:
        ((now,),) = self._database.rows(mysql.LEASE_TIME)
        return int(now)

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        tables = self._queue(log).tables
        self._database.make_side_tables()
        self._database.execute(sql.ADD_QUEUE, tables.queue, tables.shards)
        self._database.execute(sql.ADD_POINTER.format(tables.first_pointers), tables.key())
        pointer, leftover = self._watch(log)

        def work(pooled: PooledConnection, again: bool) -> bool:
            ((found, *_),) = pooled.connection.rows(sql.LEASE_ALONE, tables.queue, tables.shards)
            if again and int(found) == epoch + 1 and self.head(log).holder == holder:
                return True
            if int(found) != epoch:
                return False
            statement = sql.POINTER_ALONE.format(tables.first_pointers)
            if [int(row[0]) for row in pooled.connection.rows(statement, tables.key())] != [pointer]:
                raise _at_work(log)
            pooled.connection.execute(sql.TAKE_LEASE, holder, until, pointer, leftover, tables.queue, tables.shards)
            return True

        return self._database.transaction(work)

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        tables = self._queue(log).tables
        return self._database.execute(sql.RENEW_LEASE, until, tables.queue, tables.shards, epoch) == 1

    def release_lease(self, log: str, *, epoch: int) -> None:
        tables = self._queue(log).tables
        self._database.execute(sql.RELEASE_LEASE, tables.queue, tables.shards, epoch)

    def commit(self, log: str, commit: Commit) -> None:
        self._queue(log).writer.commit(commit)

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        queue = self._queue(log)
        ids = self._existing(log, first_id, last_id)
        return queue.reader.read(ids, max_bytes) if len(ids) else []

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        queue = self._queue(log)
        ids = self._existing(log, first_id, last_id)
        first, last = queue.reader.first_id(ids), queue.reader.last_id(ids)
        if first is None or last is None:
            return []
        row_bytes = table_sizes(self._database, queue.tables).row
        starts = range(first, last + 1, MOST_IDS)
        ends = [min(start + MOST_IDS - 1, last) for start in starts]
        return [BlockRange(start, end, (end - start + 1) * row_bytes) for start, end in zip(starts, ends, strict=True)]

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:  # noqa: ARG002
        self._queue(log)
        return ()

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        raise LogInputError(
            f"cannot find the time {time_text(time)} in queue {log!r}: the nerve layout stores no times for "
            f"messages from id {first_id} on. Use an id, or copy the queue into a store of another kind"
        )

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        queue = self._queue(log)
        ids = self._existing(log, first_id, MAX_ID)
        first, last = queue.reader.first_id(ids), queue.reader.last_id(ids)
        if first is None or last is None:
            return BlockStatistics()
        count = last - first + 1
        return BlockStatistics(first, last, count, count, table_sizes(self._database, queue.tables).total)

    def check(self, log: str) -> Sequence[str]:
        queue = self._queue(log)
        count = queue.reader.strays(self._existing(log, self.head(log).hot_id, MAX_ID))
        return [f"rows whose ids belong in other tables: {count:,}"] if count else []

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        """Delete old rows of about *max_bytes*, by the server's estimate of their size."""
        queue = self._queue(log)
        first = queue.reader.first_id(self._existing(log, 1, below - 1))
        if first is None:
            return 0
        row_bytes = max(table_sizes(self._database, queue.tables).row, 1)
        last = min(first + min(max(max_bytes // row_bytes, 1), MOST_IDS) - 1, below - 1)
        deleted = sum(
            self._database.execute(sql.DELETE_ROWS.format(queue.tables.rows(shard)), first, last)
            for shard in range(queue.tables.shards)
        )
        return deleted * row_bytes

    def vacuum_statements(self, log: str) -> Sequence[str]:
        tables = self._queue(log).tables
        return [mysql.VACUUM.format(tables.rows(shard)) for shard in range(tables.shards)]

    def get_state(self, log: str, key: str) -> VersionedValue:
        queue = self._queue(log)
        if key.startswith(PREFIX):
            return queue.positions.get(key.removeprefix(PREFIX))
        if not self._database.has_side_tables:
            return VersionedValue()
        rows = self._database.rows(sql.GET_STATE, queue.tables.queue, queue.tables.shards, key.encode())
        return VersionedValue(*rows[0]) if rows else VersionedValue()

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        queue = self._queue(log)
        self._database.make_side_tables()
        if key.startswith(PREFIX):
            return queue.positions.put(key.removeprefix(PREFIX), value, version)
        where = (queue.tables.queue, queue.tables.shards, key.encode())

        def work(pooled: PooledConnection, again: bool) -> bool:
            if again and pooled.connection.rows(sql.GET_STATE, *where) == ((version + 1, value),):
                return True
            if version:
                return pooled.connection.execute(sql.UPDATE_STATE, value, *where, version) == 1
            return _added(pooled.connection, sql.ADD_STATE, *where, value)

        return self._database.transaction(work)

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        queue = self._queue(log)
        if prefix == PREFIX:
            return queue.positions.all()
        if not self._database.has_side_tables:
            return {}
        start = prefix.encode()
        where = (queue.tables.queue, queue.tables.shards, len(start), start)
        rows = self._database.rows(sql.STATES, *where)
        return {bytes(key)[len(start) :].decode(): VersionedValue(version, value) for key, version, value in rows}

    def close(self) -> None:
        self._threads.shutdown()
        self._database.pool.close()

    def _queue(self, log: str) -> _Queue:
        if log not in self._queues:
            tables = self._database.tables(log)
            self._queues[log] = _Queue(
                tables,
                RowReader(self._database, tables, self._threads),
                RowWriter(self._database, tables, self._threads, self._throttle),
                ConsumerPositions(self._database, tables),
            )
        return self._queues[log]

    def _begin_at(self, log: str, first_id: int) -> None:
        tables = self._queue(log).tables
        watermarks = encode_watermarks(Watermarks(first_id, first_id))

        def work(pooled: PooledConnection, _: bool) -> None:
            pooled.connection.execute(sql.SET_POINTER.format(tables.first_pointers), tables.key(), first_id - 1)
            pooled.connection.execute(sql.SET_STATE, tables.queue, tables.shards, WATERMARKS.encode(), watermarks)

        self._database.transaction(work)

    def _existing(self, log: str, first_id: int, last_id: int) -> IdRange:
        """The ids from *first_id* to *last_id* that are not above the writer pointer."""
        return IdRange(first_id, min(last_id, self.head(log).last_id))

    def _watch(self, log: str) -> tuple[int, int]:
        """The writer pointer, and the last id that a publisher has left above it (or the pointer itself).

        Raises :class:`WriterBusyError` where that publisher is still at work, :class:`DamagedLogError`.
        """
        seen = self._ends(log)
        if seen[0] == seen[1]:
            return seen
        if seen[1] - seen[0] > MOST_LEFTOVERS:
            raise DamagedLogError(
                f"queue {log!r} has rows up to id {seen[1]}, but its writer pointer is {seen[0]}: an interrupted "
                f"publisher leaves at most {MOST_LEFTOVERS:,} rows. Set the pointer to the id of the last confirmed "
                "message, not to a smaller id: a writer replaces the rows above the pointer"
            )
        self._clock.sleep(WATCH_SECONDS)
        if self._ends(log) != seen:
            raise _at_work(log)
        return seen

    def _ends(self, log: str) -> tuple[int, int]:
        pointer = self.head(log).last_id
        return pointer, self._queue(log).reader.last_id(IdRange(pointer + 1, MAX_ID)) or pointer


def _added(connection: DatabaseConnection, statement: str, *values: Value) -> bool:
    """Whether *statement* added its row, which may have been there before."""
    try:
        return connection.execute(statement, *values) == 1
    except ServerError as error:
        if error.code == DUPLICATE:
            return False
        raise


def _at_work(log: str) -> WriterBusyError:
    return WriterBusyError(
        f"another publisher is writing to queue {log!r} without a lease, but a queue can have only one "
        "publisher: stop the other publisher first"
    )
