"""Logs in one SQLite file: nothing to install, durable by its write-ahead log."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.durable import is_on_read_only_disk, sync_folder
from millstream.core.lock_holders import describe_lock_holders
from millstream.core.private_files import make_private_file, make_private_folder
from millstream.core.sqlite_vacuum import FileInUseError, FileSizes, NoSpaceError, vacuum
from millstream.log.backend import (
    MAX_RECLAIMED_BLOCKS,
    BlockStatistics,
    Commit,
    Head,
    StoredBlock,
    VersionedValue,
    oldest_within,
    producer_key,
)
from millstream.log.backends.disk_reserve import DiskReserve, retry_with_reserve
from millstream.log.backends.durability import FileDurability, durability_option
from millstream.log.backends.sqlite import statements as sql
from millstream.log.errors import (
    DamagedLogError,
    FencedError,
    LogNotFoundError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
)
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.kinds import KIND
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks

_WAIT = 60.0  # seconds for which a statement waits for another process's transaction

_FREE_SPACE = "free some space on its disk, then open the writer again"

_KINDS: dict[int, tuple[type[StorageError | DamagedLogError], str]] = {
    sqlite3.SQLITE_FULL: (StorageFullError, _FREE_SPACE),
    sqlite3.SQLITE_IOERR_SHMSIZE: (StorageFullError, _FREE_SPACE),  # as at the first opening after a restart
    sqlite3.SQLITE_IOERR: (StorageError, "free some space if its disk or quota is full, or check the disk for errors"),
    sqlite3.SQLITE_READONLY: (StorageReadOnlyError, "check the rights of the file and its folder"),
    sqlite3.SQLITE_CORRUPT: (
        DamagedLogError,
        "restore the file from a backup; `sqlite3 FILE .recover` saves what can be read",
    ),
    sqlite3.SQLITE_NOTADB: (DamagedLogError, "check the path, which is not that of an SQLite database"),
}


class SqliteBackend:
    """A backend in the file *path*.

    One connection writes, under a lock; each thread that reads has its own. Any number of processes may read while
    one writes. With *create* the file and its folder are made where they are absent; *read_only* never writes. With the
    *durability* ``os`` commits are not synced: a power loss takes the last ones, and leaves the file whole.
    """

    one_host = True  # SQLite's write-ahead log needs memory shared by all who use the file

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        durability: FileDurability = "fsync",
    ) -> None:
        self.durability = durability
        self._path = path.absolute()
        self._clock = clock
        self._read_only = read_only
        self._writing = threading.Lock()
        self._lending = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._numbers: dict[str, int] = {}
        self._closed = False
        self._reserve = DiskReserve(Path(f"{self._path}-reserve"))
        if not self._path.exists() and (read_only or not create):
            raise LogNotFoundError(
                f"no log store at {self._path}: check the path, or create the store with "
                f"`millstream log create NAME --store {shlex.quote(self.url)}`"
            )
        self._is_frozen = is_on_read_only_disk(self._path)
        if read_only:
            self._open()
        else:
            self._open_to_write()

    def _open(self) -> None:
        with self._translated():
            if not self._is_frozen:
                make_private_folder(self._path.parent)
                make_private_file(self._path)  # SQLite gives its mode to the files beside it
            self._writer = self._connect()
            try:
                if not self._is_prepared():
                    self._prepare()
            except BaseException:
                self._writer.close()
                raise

    _open_to_write = retry_with_reserve(_open)  # SQLite makes the memory that processes share as a file

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}{durability_option(self.durability)}"

    def logs(self) -> Sequence[str]:
        with self._reading() as db:
            return [name for (name,) in db.execute(sql.LOG_NAMES)]

    def kinds(self) -> Mapping[str, str]:
        with self._reading() as db:
            return {name: kind.decode() for name, kind in db.execute(sql.LOG_KINDS, (KIND,))}

    def last_ids(self) -> Mapping[str, int]:
        with self._reading() as db:
            return dict(db.execute(sql.LAST_IDS))

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        with self._reading() as db:
            if db.execute(sql.LOG_NUMBER, (log,)).fetchone():
                return
        with self._transaction() as db:
            if db.execute(sql.INSERT_LOG, (log, first_id - 1)).rowcount == 1:
                (number,) = db.execute(sql.LOG_NUMBER, (log,)).fetchone()
                db.execute(sql.CREATE_BLOCKS.format(number))
                db.execute(sql.INSERT_STATE, (number, KIND, kind.encode()))
                if first_id > 1:
                    db.execute(
                        sql.INSERT_STATE, (number, WATERMARKS, encode_watermarks(Watermarks(first_id, first_id)))
                    )

    @retry_with_reserve
    def upgrade(self) -> None:
        with self._reading() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < sql.VERSION:
            with self._transaction() as db:
                db.execute(sql.SET_VERSION)

    @retry_with_reserve
    def rename(self, log: str, new: str, *, epoch: int) -> bool:
        with self._transaction() as db:
            renamed = db.execute(sql.RENAME, (new, self._number(db, log), epoch)).rowcount == 1
        if renamed:
            self._numbers.pop(log, None)
        return renamed

    def head(self, log: str) -> Head:
        with self._reading() as db:
            row = db.execute(sql.HEAD, (WATERMARKS, self._number(db, log))).fetchone()
        last_id, received_at, epoch, holder, until, value = row
        head = Head(last_id=last_id, received_at=received_at, epoch=epoch, holder=holder, lease_until=until)
        return head.with_watermarks(value)

    def lease_time(self) -> int:
        return int(self._clock.monotonic() * MICROSECONDS)

    @retry_with_reserve
    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        with self._transaction() as db:
            if db.execute(sql.TAKE_LEASE, (holder, until, self._number(db, log), epoch)).rowcount != 1:
                return False
        self._reserve.keep()  # comes last: a call that is repeated must not take back what was given up for it
        return True

    @retry_with_reserve
    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        with self._transaction() as db:
            return db.execute(sql.RENEW_LEASE, (until, self._number(db, log), epoch)).rowcount == 1

    @retry_with_reserve
    def release_lease(self, log: str, *, epoch: int) -> None:
        with self._transaction() as db:
            db.execute(sql.RELEASE_LEASE, (self._number(db, log), epoch))

    def commit(self, log: str, commit: Commit) -> None:
        with self._writing, self._translated():  # as in _transaction(), whose generator takes longer
            db = self._writer
            try:
                db.execute("BEGIN IMMEDIATE")
                self._store(db, log, commit)
                db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _store(self, db: sqlite3.Connection, log: str, commit: Commit) -> None:
        number = self._number(db, log)
        move = (commit.last_id, commit.received_at, number, commit.epoch, commit.previous_id)
        if db.execute(sql.MOVE_POINTER, move).rowcount != 1:
            raise FencedError(
                f"another writer has taken over log {log!r}; the last data of this writer was not stored: "
                "stop one of the two, and append the data again"
            )
        insert = sql.INSERT_BLOCK.format(number)
        for block in commit.blocks:
            db.execute(insert, _row(block))
        if commit.sequence is not None:
            db.execute(sql.SET_STATE, (number, producer_key(commit.producer), str(commit.sequence).encode()))

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        blocks: list[StoredBlock] = []
        size = 0
        with self._reading() as db:
            rows = db.execute(sql.READ_BLOCKS.format(self._number(db, log)), (*[first_id] * 3, last_id))
            for first, last, data in rows:
                size += len(data)
                if blocks and size > max_bytes:
                    break
                blocks.append(StoredBlock(first, last, data))
            rows.close()
        return blocks

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        with self._reading() as db:
            rows = db.execute(sql.BLOCK_RANGES.format(self._number(db, log)), (*[first_id] * 3, last_id))
            return [BlockRange(*row) for row in rows]

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        with self._reading() as db:
            rows = db.execute(sql.BLOCK_INDEX.format(self._number(db, log)), (*[first_id] * 3, last_id))
            return [IndexEntry(*row) for row in rows]

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        with self._reading() as db:
            row = db.execute(sql.FIRST_BLOCK_SINCE.format(self._number(db, log)), (*[first_id] * 3, time)).fetchone()
            return BlockRange(*row) if row else None

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        with self._reading() as db:
            row = db.execute(sql.STATISTICS.format(self._number(db, log)), [first_id] * 3).fetchone()
            return BlockStatistics(*row) if row[0] is not None else BlockStatistics()

    def check(self, log: str) -> Sequence[str]:
        self.head(log)  # there is nothing around the blocks but their rows, which are read with them
        return ()

    @retry_with_reserve
    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        """Free old blocks; their pages are used again for new ones, and the file does not grow meanwhile."""
        with self._transaction() as db:
            number = self._number(db, log)
            old = db.execute(sql.OLD_BLOCKS.format(number), (below, MAX_RECLAIMED_BLOCKS)).fetchall()
            last_id, freed = oldest_within(old, max_bytes)
            db.execute(sql.DELETE_BLOCKS.format(number), (last_id,))
        if freed:
            with contextlib.suppress(StorageFullError):  # what was freed is freed
                self._checkpoint()
        return freed

    def vacuum(self) -> FileSizes:
        with self._writing, self._translated():
            try:
                return vacuum(self._writer, self._path)
            except NoSpaceError as error:
                raise StorageFullError(str(error)) from error
            except FileInUseError as error:
                raise StorageBusyError(str(error)) from error

    def get_state(self, log: str, key: str) -> VersionedValue:
        with self._reading() as db:
            row = db.execute(sql.GET_STATE, (self._number(db, log), key)).fetchone()
            return VersionedValue(*row) if row else VersionedValue()

    @retry_with_reserve
    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        with self._transaction() as db:
            number = self._number(db, log)
            if version == 0:
                return db.execute(sql.INSERT_STATE, (number, key, value)).rowcount == 1
            return db.execute(sql.UPDATE_STATE, (value, number, key, version)).rowcount == 1

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        with self._reading() as db:
            rows = db.execute(sql.STATES, (self._number(db, log), len(prefix), prefix))
            return {key[len(prefix) :]: VersionedValue(version, value) for key, version, value in rows}

    def close(self) -> None:
        with self._writing, self._lending:
            if self._closed:
                return
            self._closed = True
            for connection in [*self._readers, self._writer]:
                connection.close()
            self._readers.clear()

    def _connect(self) -> sqlite3.Connection:
        mode = "mode=ro" if self._read_only else "mode=rwc"
        if self._is_frozen:
            self._refuse_unread_commits()
            mode = "mode=ro&immutable=1"
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?{mode}", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'fsync' else 'NORMAL'}")
            connection.execute("PRAGMA cache_size = -8192")
            connection.execute(f"PRAGMA journal_size_limit = {sql.WAL_BYTES_KEPT}")
            connection.execute("PRAGMA secure_delete = FAST")  # Debian's default writes what is trimmed full of zeros
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_unread_commits(self) -> None:
        """No process can change a file on a disk that can only be read, nor take in what lies beside it."""
        beside = Path(f"{self._path}-wal")
        if beside.exists() and beside.stat().st_size:
            raise StorageReadOnlyError(
                f"{beside} contains commits that are not in {self._path.name} yet, and the disk is "
                "read-only: copy both files to a writable disk, or make this disk writable"
            )

    def _is_prepared(self) -> bool:
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version > sql.VERSION:
            raise StorageError(
                f"{self._path} is a log store of format {version}, but this release reads format "
                f"{sql.VERSION}: upgrade Millstream"
            )
        (mode,) = self._writer.execute("PRAGMA journal_mode").fetchone()
        # A copy that SQLite itself made (VACUUM INTO) has another mode, in which it can be read as well.
        return bool(version and (mode == "wal" or self._read_only or self._is_frozen))

    def _prepare(self) -> None:
        """Make the tables of a new file; of several processes that try at once, one does."""
        if self._read_only:
            raise LogNotFoundError(f"{self._path} is not a log store: check the path")
        self._writer.execute(f"PRAGMA page_size = {sql.PAGE_SIZE}")
        with self._transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise StorageError(f"{self._path} is a database of another program: name another file")
                for statement in sql.SCHEMA:
                    db.execute(statement)
        self._writer.execute("PRAGMA journal_mode = WAL")
        sync_folder(self._path.parent)
        sync_folder(self._path.parent.parent)

    def _number(self, db: sqlite3.Connection, log: str) -> int:
        number = self._numbers.get(log)
        if number is None:
            row = db.execute(sql.LOG_NUMBER, (log,)).fetchone()
            if row is None:
                raise LogNotFoundError(
                    f"there is no log {log!r} in {self.url}; `millstream log list --store {shlex.quote(self.url)}` "
                    "lists its logs"
                )
            number = self._numbers[log] = row[0]
        return number

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._translated():
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lending:
            if not self._closed:
                self._readers.append(connection)
                return
        connection.close()

    @retry_with_reserve
    def _checkpoint(self) -> None:
        """Move the write-ahead log into the file as far as readers allow: only then its room is used again."""
        with self._writing, self._translated():
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing, self._translated():
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _translated(self) -> _ErrorTranslation:
        """Turn an error of SQLite or the system into a :class:`StorageError` with advice, once the store is open."""
        if self._closed:
            raise StorageError(f"{self.url} is closed: open the store again")
        return _ErrorTranslation(self._path)


class _ErrorTranslation:
    """Turns an error of SQLite or the system about the file *path* into one of a store, with advice."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, sqlite3.Error | OSError):
            return
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            holder = describe_lock_holders(self._path, Path(f"{self._path}-shm"), Path(f"{self._path}-wal"))
            raise StorageBusyError(f"{self._path} has been locked for {_WAIT:.0f} seconds: {holder}") from error
        other = StorageError, "check the disk for errors"
        found, advice = _KINDS.get(code, _KINDS.get(code & 0xFF, other))
        raise found(f"{self._path}: {error}; {advice}") from error


def _row(block: Any) -> tuple[Any, ...]:
    head = block.header
    times = (head.min_event_time, head.max_event_time, head.min_received_at, head.max_received_at)
    return (head.first_id, head.last_id, head.epoch, len(block.data), *times, block.data)
