"""Logs in a database of MariaDB or MySQL: one table of blocks a log, in order of their ids."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.clock import Clock
from millstream.log.backend import (
    RECLAIMED_AT_ONCE,
    Commit,
    Head,
    State,
    Statistics,
    StoredBlock,
    oldest_within,
    producer_key,
)
from millstream.log.block import EncodedBlock
from millstream.log.errors import FencedError, LogNotFoundError, StorageError
from millstream.log.ids import BlockRange
from millstream.log.marks import MARKS, Marks, decode_marks, encode_marks
from millstream.log.mysql import statements as sql
from millstream.log.mysql.driver import Connection, Driver, ServerError, Value, choose_driver
from millstream.log.mysql.failures import DUPLICATE
from millstream.log.mysql.place import Place
from millstream.log.mysql.pool import PATIENCE, Lent, Pool
from millstream.log.mysql.server import read_durability

_RANGES_AT_ONCE = 4096  # blocks that one call of read() may return at most
_EVERYTHING = 2**63 - 1
_STATEMENT_BYTES = 4096  # what a statement takes beside the blocks in it


class MysqlBackend:
    """A backend in the database at *place*, which is made where it is absent, with *create*; *read_only* never writes.

    While the server is away, calls wait for it, up to *patience* seconds; opening does not. Leases run on the server's
    clock: where that is set back, a lease that was left by a writer on another host lasts longer by as much. Without a
    *driver* the place's own is taken.
    """

    one_host = False

    def __init__(
        self,
        place: Place,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = PATIENCE,
        driver: Driver | None = None,
    ) -> None:
        self._place = place
        self._tables: dict[str, str] = {}
        self._pool = Pool(place, clock, driver or choose_driver(place), read_only=read_only, patience=patience)
        try:
            self._prepare(create=create and not read_only)
        except BaseException:
            self._pool.close()
            raise

    @property
    def url(self) -> str:
        return self._place.url

    @property
    def durability(self) -> str:
        return self._pool.call(lambda lent: read_durability(lent.connection))

    def logs(self) -> Sequence[str]:
        return [name for (name,) in self._rows(sql.LOG_NAMES)]

    def create(self, log: str, *, first_id: int = 1) -> None:
        if not self._rows(sql.LOG_BLOCKS, log):
            table = _table_name(log)
            self._execute(sql.CREATE_BLOCKS.format(table))
            self._pool.call(lambda lent: _create(lent, log, table, first_id))

    def head(self, log: str) -> Head:
        rows = self._rows(sql.HEAD, MARKS.encode(), log)
        if not rows:
            raise self._not_found(log)
        *found, marks = rows[0]
        return Head(*found, *msgspec.structs.astuple(decode_marks(marks)))

    def lease_time(self) -> int:
        ((now,),) = self._rows(sql.LEASE_TIME)
        return int(now)

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        self._table(log)

        def is_taken() -> bool:
            head = self.head(log)
            return (head.epoch, head.holder) == (epoch + 1, holder)

        return self._change(is_taken, sql.TAKE_LEASE, holder, until, log, epoch)

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        return self._execute(sql.RENEW_LEASE, until, log, epoch) == 1

    def release_lease(self, log: str, *, epoch: int) -> None:
        self._execute(sql.RELEASE_LEASE, log, epoch)

    def commit(self, log: str, commit: Commit) -> None:
        table = self._table(log)

        def is_stored() -> bool:
            return self._rows(sql.BLOCK_EPOCH.format(table), commit.previous_id + 1) == ((commit.epoch,),)

        stored, tries = self._pool.counted(lambda lent: _commit(lent, table, log, commit))
        if not stored and (tries == 1 or not is_stored()):
            raise FencedError(f"the log {log!r} has a newer writer; what this one sent last was not stored")

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        ranges = self._ranges(log, first_id, last_id, _RANGES_AT_ONCE)
        sizes = itertools.accumulate(block.bytes for block in ranges)
        chosen = [block for block, size in zip(ranges, sizes, strict=True) if size <= max_bytes] or ranges[:1]
        if not chosen:
            return []
        rows = self._rows(sql.READ_BLOCKS.format(self._table(log)), chosen[0].first_id, chosen[-1].first_id)
        blocks = itertools.groupby(rows, lambda row: (int(row[0]), int(row[1])))
        return [StoredBlock(first, last, _joined([row[2] for row in parts])) for (first, last), parts in blocks]

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        return self._ranges(log, first_id, last_id, _EVERYTHING)

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        statement = sql.FIRST_BLOCK_SINCE.format(self._table(log))
        rows = self._rows(statement, first_id, first_id, first_id, time)
        return BlockRange(*rows[0]) if rows else None

    def statistics(self, log: str, first_id: int = 1) -> Statistics:
        (row,) = self._rows(sql.STATISTICS.format(self._table(log)), first_id, first_id, first_id)
        return Statistics(*map(int, row)) if row[0] is not None else Statistics()

    def check(self, log: str) -> Sequence[str]:
        self.head(log)  # there is nothing around the blocks but their rows, which are read with them
        return ()

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        table = self._table(log)
        old = self._rows(sql.OLD_BLOCKS.format(table), below, RECLAIMED_AT_ONCE)
        last_id, freed = oldest_within([(int(first), int(size)) for first, size in old], max_bytes)
        if freed:
            self._execute(sql.DELETE_BLOCKS.format(table), last_id)
        return freed

    def get_state(self, log: str, key: str) -> State:
        self._table(log)
        rows = self._rows(sql.GET_STATE, log, key.encode())
        return State(*rows[0]) if rows else State()

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        self._table(log)

        def is_stored() -> bool:
            return self.get_state(log, key) == State(version + 1, value)

        if version == 0:
            added, tries = self._add(sql.INSERT_STATE, log, key.encode(), value)
            return added or (tries > 1 and is_stored())
        return self._change(is_stored, sql.UPDATE_STATE, value, log, key.encode(), version)

    def states(self, log: str, prefix: str) -> Mapping[str, State]:
        self._table(log)
        start = prefix.encode()
        rows = self._rows(sql.STATES, log, len(start), start)
        return {key[len(start) :].decode(): State(version, value) for key, version, value in rows}

    def close(self) -> None:
        self._pool.close()

    def _prepare(self, *, create: bool) -> None:
        """Make database and tables where they are absent; of several processes that try at once, each may do a part."""
        if create:
            self._pool.make_database()
        try:
            ((version,),) = self._pool.once(lambda lent: lent.connection.rows(sql.FORMAT))
        except LogNotFoundError as error:
            if not create:
                raise LogNotFoundError(
                    f"there is no log store at {self.url}; check the URL, or create a log in it first"
                ) from error
            for statement in sql.SCHEMA:
                self._execute(statement)
            self._add(sql.SET_FORMAT, sql.VERSION)
            version = sql.VERSION
        if version is not None and version > sql.VERSION:
            raise StorageError(
                f"{self.url} is a log store of format {version}; this Millstream reads format {sql.VERSION}. "
                "Install a newer one"
            )

    def _table(self, log: str) -> str:
        """The name of the table of *log*'s blocks, for use in a statement."""
        if log not in self._tables:
            rows = self._rows(sql.LOG_BLOCKS, log)
            if not rows:
                raise self._not_found(log)
            self._tables[log] = rows[0][0]
        return self._tables[log]

    def _not_found(self, log: str) -> LogNotFoundError:
        return LogNotFoundError(
            f"there is no log {log!r} in {self.url}; `millstream log ls --store URL` lists what is there"
        )

    def _ranges(self, log: str, first_id: int, last_id: int, most: int) -> list[BlockRange]:
        statement = sql.BLOCK_RANGES.format(self._table(log))
        rows = self._rows(statement, first_id, first_id, first_id, last_id, most)
        return [BlockRange(*row) for row in rows]

    def _rows(self, statement: str, *values: Value) -> tuple[tuple[Any, ...], ...]:
        return tuple(self._pool.call(lambda lent: lent.connection.rows(statement, *values)))

    def _execute(self, statement: str, *values: Value) -> int:
        return self._pool.call(lambda lent: lent.connection.execute(statement, *values))

    def _add(self, statement: str, *values: Value) -> tuple[bool, int]:
        """Whether *statement* added its row, which may have been there before; and how often it was tried."""

        def add(lent: Lent) -> bool:
            try:
                return lent.connection.execute(statement, *values) == 1
            except ServerError as error:
                if error.number == DUPLICATE:
                    return False
                raise

        return self._pool.counted(add)

    def _change(self, is_done: Callable[[], bool], statement: str, *values: Value) -> bool:
        """Whether *statement* changed its row; where a reply was lost, the row itself tells."""
        found, tries = self._pool.counted(lambda lent: lent.connection.execute(statement, *values))
        return found == 1 or (tries > 1 and is_done())


def _create(lent: Lent, log: str, table: str, first_id: int) -> None:
    """Add the row of *log* and its marks in one transaction, unless somebody else was quicker."""
    connection = lent.connection
    connection.execute(sql.BEGIN)
    try:
        connection.execute(sql.INSERT_LOG, log, table, first_id - 1)
    except ServerError as error:
        if error.number != DUPLICATE:
            raise
        connection.execute(sql.ROLLBACK)
        return
    if first_id > 1:
        connection.execute(sql.INSERT_STATE, log, MARKS.encode(), encode_marks(Marks(first_id, first_id)))
    connection.execute(sql.COMMIT)


def _commit(lent: Lent, table: str, log: str, commit: Commit) -> bool:
    """Do *commit* in one transaction; False where another writer has moved epoch or pointer."""
    connection = lent.connection
    connection.execute(sql.BEGIN)
    move = (commit.last_id, commit.received_at, log, commit.epoch, commit.previous_id)
    if connection.execute(sql.MOVE_POINTER, *move) != 1:
        connection.execute(sql.ROLLBACK)
        return False
    for rows in _packets(commit.blocks, lent.packet_bytes):
        _insert(connection, table, rows)
    if commit.sequence is not None:
        key, sequence = producer_key(commit.producer).encode(), str(commit.sequence).encode()
        connection.execute(sql.SET_STATE, log, key, sequence)
    connection.execute(sql.COMMIT)
    return True


def _insert(connection: Connection, table: str, rows: Sequence[Sequence[Value]]) -> None:
    statement = sql.INSERT_BLOCKS.format(table) + ", ".join([sql.BLOCK_ROW] * len(rows))
    connection.execute(statement, *itertools.chain.from_iterable(rows))


def _packets(blocks: Sequence[EncodedBlock], packet_bytes: int) -> Iterator[list[Sequence[Value]]]:
    """The rows of *blocks*, as many together as one packet holds even if every byte of them is escaped."""
    room = max((packet_bytes - _STATEMENT_BYTES) // 2, 256)
    packet: list[Sequence[Value]] = []
    size = 0
    for row in itertools.chain.from_iterable(_parts(block, room - 256) for block in blocks):
        taken = len(row[-1]) + 256  # type: ignore[arg-type]
        if packet and size + taken > room:
            yield packet
            packet, size = [], 0
        packet.append(row)
        size += taken
    if packet:
        yield packet


def _parts(block: EncodedBlock, part_bytes: int) -> Iterator[Sequence[Value]]:
    """The rows of *block*: one, or more where it is larger than *part_bytes*."""
    head = block.header
    times = (head.min_event_time, head.max_event_time, head.min_received_at, head.max_received_at)
    for part, start in enumerate(range(0, len(block.data), part_bytes)):
        data = block.data[start : start + part_bytes]
        yield (head.first_id, part, head.last_id, head.epoch, len(block.data), *times, data)


def _joined(parts: Sequence[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _table_name(log: str) -> str:
    """A table name that people recognise and no two logs share."""
    words = re.sub(r"[^a-z0-9]+", "_", log.lower()).strip("_")[:24]
    return f"blocks_{words}_{hashlib.sha256(log.encode()).hexdigest()[:16]}"
