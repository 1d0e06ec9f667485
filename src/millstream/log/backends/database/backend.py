"""Logs in a database of a server: one table of blocks a log, in order of their ids."""

from __future__ import annotations

import abc
import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic

from millstream.core.clock import Clock
from millstream.log.backend import (
    MAX_RECLAIMED_BLOCKS,
    BlockStatistics,
    Commit,
    Head,
    StoredBlock,
    VersionedValue,
    oldest_within,
)
from millstream.log.backends.database.address import AddressT
from millstream.log.backends.database.dialect import Dialect
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver, ServerError, Value
from millstream.log.backends.database.pool import RETRY_SECONDS, ConnectionPool, PooledConnection
from millstream.log.backends.database.statements import VERSION, Statements
from millstream.log.block_header import EncodedBlock
from millstream.log.errors import FencedError, LogNotFoundError, StorageError
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.kinds import KIND
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks

_RANGES_AT_ONCE = 4096  # blocks that one call of read() may return at most
_EVERYTHING = 2**63 - 1


class DatabaseBackend(abc.ABC, Generic[AddressT]):
    """A backend in the database at *address*; with *create* it is made where it is absent; *read_only* never writes.

    While the server is unreachable, calls wait for it, up to *patience* seconds; opening does not. Leases run on the
    server's clock: where that is set back, a lease that was left by a writer on another host lasts longer by as much.
    """

    one_host = False

    sql: ClassVar[type[Statements]]

    def __init__(
        self,
        address: AddressT,
        clock: Clock,
        dialect: Dialect,
        driver: DatabaseDriver[AddressT],
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = RETRY_SECONDS,
    ) -> None:
        self._address = address
        self._duplicate = dialect.error_codes.duplicate
        self._tables: dict[str, str] = {}
        self._pool = ConnectionPool(address, clock, dialect, driver, read_only=read_only, patience=patience)
        try:
            self._prepare(create=create and not read_only)
        except BaseException:
            self._pool.close()
            raise

    @abc.abstractmethod
    def _store(self, pooled: PooledConnection, table: str, log: str, commit: Commit) -> bool:
        """Do *commit* in one transaction; False where another writer has moved epoch or pointer."""

    @abc.abstractmethod
    def _durability(self, connection: DatabaseConnection) -> str:
        """The durability of a commit on the server."""

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def durability(self) -> str:
        return self._pool.call(lambda pooled: self._durability(pooled.connection))

    def logs(self) -> Sequence[str]:
        return [name for (name,) in self._rows(self.sql.LOG_NAMES)]

    def kinds(self) -> Mapping[str, str]:
        return {name: (kind or b"").decode() for name, kind in self._rows(self.sql.LOG_KINDS, KIND.encode())}

    def last_ids(self) -> Mapping[str, int]:
        return {name: int(last_id) for name, last_id in self._rows(self.sql.LAST_IDS)}

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        if not self._rows(self.sql.LOG_BLOCKS, log):
            table = _table_name(log)
            if set(self._rows(self.sql.LOGS_OF_BLOCKS, table)) - {(log,)}:  # of a log that was once called so
                table = _table_name(f"{log} again")
            self._execute(self.sql.CREATE_BLOCKS.format(table))
            self._pool.call(lambda pooled: self._add_log(pooled.connection, log, table, first_id, kind))

    def upgrade(self) -> None:
        ((version,),) = self._rows(self.sql.FORMAT)
        if version is None or version < VERSION:  # None: another process has made the table and not yet its row
            self._add(self.sql.SET_FORMAT, VERSION)

    def rename(self, log: str, new: str, *, epoch: int) -> bool:
        def rename(pooled: PooledConnection) -> bool:
            connection = pooled.connection
            connection.execute(self.sql.BEGIN)
            if connection.execute(self.sql.RENAME, new, log, epoch) != 1:
                connection.execute(self.sql.ROLLBACK)
                return False
            connection.execute(self.sql.RENAME_STATES, new, log)
            connection.execute(self.sql.COMMIT)
            return True

        renamed, tries = self._pool.counted(rename)
        if not renamed and not self._was_done(tries, lambda: log not in self.logs()):
            return False
        self._tables.pop(log, None)
        return True

    def head(self, log: str) -> Head:
        rows = self._rows(self.sql.HEAD, WATERMARKS.encode(), log)
        if not rows:
            raise self._not_found(log)
        last_id, received_at, epoch, holder, until, value = rows[0]
        head = Head(last_id=last_id, received_at=received_at, epoch=epoch, holder=holder, lease_until=until)
        return head.with_watermarks(value)

    def lease_time(self) -> int:
        ((now,),) = self._rows(self.sql.LEASE_TIME)
        return int(now)

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        self._table(log)

        def is_taken() -> bool:
            head = self.head(log)
            return (head.epoch, head.holder) == (epoch + 1, holder)

        return self._change(is_taken, self.sql.TAKE_LEASE, holder, until, log, epoch)

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        return self._execute(self.sql.RENEW_LEASE, until, log, epoch) == 1

    def release_lease(self, log: str, *, epoch: int) -> None:
        self._execute(self.sql.RELEASE_LEASE, log, epoch)

    def commit(self, log: str, commit: Commit) -> None:
        table = self._table(log)

        def is_stored() -> bool:
            return self._rows(self.sql.BLOCK_EPOCH.format(table), commit.previous_id + 1) == ((commit.epoch,),)

        stored, tries = self._pool.counted(lambda pooled: self._store(pooled, table, log, commit))
        if not stored and not self._was_done(tries, is_stored):
            raise FencedError(
                f"another writer has taken over log {log!r}; the last data of this writer was not stored: "
                "stop one of the two, and append the data again"
            )

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        ranges = self._ranges(log, first_id, last_id, _RANGES_AT_ONCE)
        sizes = itertools.accumulate(block.bytes for block in ranges)
        chosen = [block for block, size in zip(ranges, sizes, strict=True) if size <= max_bytes] or ranges[:1]
        if not chosen:
            return []
        rows = self._rows(self.sql.READ_BLOCKS.format(self._table(log)), chosen[0].first_id, chosen[-1].first_id)
        blocks = itertools.groupby(rows, lambda row: (int(row[0]), int(row[1])))
        return [StoredBlock(first, last, _joined([row[2] for row in parts])) for (first, last), parts in blocks]

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        return self._ranges(log, first_id, last_id, _EVERYTHING)

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        statement = self.sql.BLOCK_INDEX.format(self._table(log))
        return [IndexEntry(*map(int, row)) for row in self._rows(statement, first_id, first_id, first_id, last_id)]

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        statement = self.sql.FIRST_BLOCK_SINCE.format(self._table(log))
        rows = self._rows(statement, first_id, first_id, first_id, time)
        return BlockRange(*rows[0]) if rows else None

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        (row,) = self._rows(self.sql.STATISTICS.format(self._table(log)), first_id, first_id, first_id)
        return BlockStatistics(*map(int, row)) if row[0] is not None else BlockStatistics()

    def check(self, log: str) -> Sequence[str]:
        self.head(log)  # there is nothing around the blocks but their rows, which are read with them
        return ()

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        table = self._table(log)
        old = self._rows(self.sql.OLD_BLOCKS.format(table), below, MAX_RECLAIMED_BLOCKS)
        last_id, freed = oldest_within([(int(first), int(size)) for first, size in old], max_bytes)
        if freed:
            self._execute(self.sql.DELETE_BLOCKS.format(table), last_id)
        return freed

    def vacuum_statements(self, log: str) -> Sequence[str]:
        return [self.sql.VACUUM.format(self._table(log))]

    def get_state(self, log: str, key: str) -> VersionedValue:
        self._table(log)
        rows = self._rows(self.sql.GET_STATE, log, key.encode())
        return VersionedValue(*rows[0]) if rows else VersionedValue()

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        self._table(log)

        def is_stored() -> bool:
            return self.get_state(log, key) == VersionedValue(version + 1, value)

        if version == 0:
            added, tries = self._add(self.sql.INSERT_STATE, log, key.encode(), value)
            return added or self._was_done(tries, is_stored)
        return self._change(is_stored, self.sql.UPDATE_STATE, value, log, key.encode(), version)

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        self._table(log)
        start = prefix.encode()
        rows = self._rows(self.sql.STATES, log, len(start), start)
        return {key[len(start) :].decode(): VersionedValue(version, value) for key, version, value in rows}

    def close(self) -> None:
        self._pool.close()

    def _prepare(self, *, create: bool) -> None:
        """Make database and tables where they are absent; of several processes that try at once, each may do a part."""
        if create:
            self._pool.make_database()
        try:
            ((version,),) = self._pool.once(lambda pooled: pooled.connection.rows(self.sql.FORMAT))
        except LogNotFoundError as error:
            if not create:
                raise LogNotFoundError(
                    f"no log store at {self.url}: check the URL, or create the store with "
                    "`millstream log create NAME --store URL`"
                ) from error
            for statement in self.sql.SCHEMA:
                self._execute(statement)
            self._add(self.sql.SET_FORMAT, VERSION)
            version = VERSION
        if version is not None and version > VERSION:
            raise StorageError(
                f"{self.url} is a log store of format {version}, but this release reads format "
                f"{VERSION}: upgrade Millstream"
            )

    def _table(self, log: str) -> str:
        """The name of the table of *log*'s blocks, for use in a statement."""
        if log not in self._tables:
            rows = self._rows(self.sql.LOG_BLOCKS, log)
            if not rows:
                raise self._not_found(log)
            self._tables[log] = rows[0][0]
        return self._tables[log]

    def _not_found(self, log: str) -> LogNotFoundError:
        return LogNotFoundError(
            f"there is no log {log!r} in {self.url}; `millstream log list --store URL` lists its logs"
        )

    def _ranges(self, log: str, first_id: int, last_id: int, most: int) -> list[BlockRange]:
        statement = self.sql.BLOCK_RANGES.format(self._table(log))
        rows = self._rows(statement, first_id, first_id, first_id, last_id, most)
        return [BlockRange(*row) for row in rows]

    def _rows(self, statement: str, *values: Value) -> tuple[tuple[Any, ...], ...]:
        return tuple(self._pool.call(lambda pooled: pooled.connection.rows(statement, *values)))

    def _execute(self, statement: str, *values: Value) -> int:
        return self._pool.call(lambda pooled: pooled.connection.execute(statement, *values))

    def _add_log(self, connection: DatabaseConnection, log: str, table: str, first_id: int, kind: str) -> None:
        """Add the row of *log* and its first states in one transaction, unless another process was quicker."""
        connection.execute(self.sql.BEGIN)
        if self._is_added(connection, self.sql.INSERT_LOG, log, table, first_id - 1):
            connection.execute(self.sql.INSERT_STATE, log, KIND.encode(), kind.encode())
            if first_id > 1:
                watermarks = encode_watermarks(Watermarks(first_id, first_id))
                connection.execute(self.sql.INSERT_STATE, log, WATERMARKS.encode(), watermarks)
        connection.execute(self.sql.COMMIT)

    def _is_added(self, connection: DatabaseConnection, statement: str, *values: Value) -> bool:
        """Whether *statement* added its row, which may have been there before."""
        try:
            return connection.execute(statement, *values) == 1
        except ServerError as error:
            if error.code == self._duplicate:
                return False
            raise

    def _add(self, statement: str, *values: Value) -> tuple[bool, int]:
        """Whether *statement* added its row, which may have been there before; and how often it was tried."""
        return self._pool.counted(lambda pooled: self._is_added(pooled.connection, statement, *values))

    def _change(self, is_done: Callable[[], bool], statement: str, *values: Value) -> bool:
        """Whether *statement* changed its row; where a reply was lost, the row itself tells."""
        found, tries = self._pool.counted(lambda pooled: pooled.connection.execute(statement, *values))
        return found == 1 or self._was_done(tries, is_done)

    def _was_done(self, tries: int, is_done: Callable[[], bool]) -> bool:
        """Whether an earlier one of *tries*, whose reply was lost, has done the work, and durably.

        What is seen may still be lost: InnoDB shows a commit before its flush, and PostgreSQL one that no standby has
        confirmed, after a restart. A later commit that changes something is flushed and confirmed after it.
        """
        if tries == 1 or not is_done():
            return False
        if not self._execute(self.sql.TOUCH, self.sql.SETTLED):
            self._add(self.sql.INSERT_STATE, "", self.sql.SETTLED, b"")
        return True


def _joined(parts: Sequence[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _table_name(log: str) -> str:
    """A table name that people recognise and no two logs share."""
    words = re.sub(r"[^a-z0-9]+", "_", log.lower()).strip("_")[:24]
    return f"blocks_{words}_{hashlib.sha256(log.encode()).hexdigest()[:16]}"


def block_values(block: EncodedBlock) -> tuple[int, ...]:
    """What stands in a block's row beside its ids, epoch and data: its bytes, then its least and greatest times."""
    head = block.header
    return len(block.data), head.min_event_time, head.max_event_time, head.min_received_at, head.max_received_at
