"""Small documents that parts of a node keep, each replaced as a whole: files in a folder, or rows on a server."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import sqlalchemy as sa

from millstream.core.column_types import LONG_BYTES, NAME
from millstream.core.database_server import largest_statement
from millstream.core.durable import write_durably
from millstream.core.errors import BusyError, MillstreamError
from millstream.core.passing_errors import is_passing
from millstream.core.sql import make_tables_once, writing
from millstream.core.sql_rows import insert_new

metadata = sa.MetaData()

_log = logging.getLogger(__name__)

KEY_BYTES = 32
"""The length of a secret key that processes share."""

_WAIT_OR_STOP = "wait until that process ends, or stop it"
_HOLDER = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND objsubid = 1 AND ((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) = :key"
)
"""The query for the process of PostgreSQL that has the advisory lock *key*."""

_END_SECONDS, _END_LOOKS = 0.02, 250
"""How often it is looked whether a session has ended, and how many times."""

_LOOK_SECONDS = 10.0
"""How often the connection of a lock is looked at."""

_LONGEST_WAIT = 31_536_000  # seconds: the most that MariaDB and MySQL take

_documents = sa.Table(
    "node_documents",
    metadata,
    sa.Column("name", NAME, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("data", LONG_BYTES, nullable=False),
)


_parts = sa.Table(
    "node_document_parts",
    metadata,
    sa.Column("name", NAME, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("data", LONG_BYTES, nullable=False),
)
"""The parts of a large document, of the same ``version`` as its row of ``node_documents``, from 1 on."""

_IN_PARTS = b"\xc1parts "
"""Begins the ``data`` of a document that has only its number of parts there: no MessagePack, JSON or text begins so."""

_SMALL_BYTES = 1_000_000
"""A document of so many bytes fits into a statement of every server."""

_STATEMENT_BYTES = 65_536
"""The most bytes of a statement beside the content, each byte of which may take two."""


class DocumentBusyError(BusyError):
    """Another process uses the document, or has changed it."""


class IncompleteDocumentError(MillstreamError):
    """A part of the document is missing."""


class DocumentWriteError(MillstreamError):
    """The disk of the document is full, or cannot be written now."""

    transient = True


class Document(Protocol):
    """Bytes under a name; ``str()`` says where they are."""

    def read(self) -> bytes | None:
        """The content of the document; None if it does not exist."""
        ...

    def write(self, data: bytes) -> None:
        """Put *data* in its place, durably. Raises :class:`DocumentBusyError` where another process did meanwhile, as
        far as the place can tell, and :class:`DocumentWriteError`."""
        ...

    def create(self, data: bytes) -> None:
        """Put *data* in its place, durably, unless the document exists."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Keep other processes off while the block runs. Raises :class:`DocumentBusyError` where one is at it."""
        ...


class Documents(Protocol):
    """The documents of a node, by names such as ``producers/bits.json``."""

    def document(self, name: str) -> Document:
        """The document *name*, which need not be there."""
        ...

    def versions(self, folder: str) -> Mapping[str, int]:
        """The names of the documents in *folder*, each with a number that changes when the document does."""
        ...


class FileDocument:
    """A file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.path, data)
        except OSError as error:
            if not is_passing(error):
                raise
            raise DocumentWriteError(
                f"cannot write {self}: {error.strerror}: free some space if its disk is full, or check the disk"
            ) from error

    def create(self, data: bytes) -> None:
        if not self.path.exists():
            self.write(data)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DocumentBusyError(f"another process is using {self}: {_WAIT_OR_STOP}") from None
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a child forked meanwhile shares the file: closing is not enough


class FolderDocuments:
    """The files in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def document(self, name: str) -> FileDocument:
        return FileDocument(self._folder / name)

    def versions(self, folder: str) -> Mapping[str, int]:
        found = {}
        for path in sorted((self._folder / folder).glob("[!.]*")):
            if path.suffix != ".lock" and path.is_file():  # a Spark stream has its checkpoint in a folder
                with contextlib.suppress(FileNotFoundError):
                    found[f"{folder}/{path.name}"] = path.stat().st_mtime_ns
        return found


class DatabaseDocument:
    """A row of the database of *engine*, on a server, and more rows if it is large. One that was read is only replaced
    while it is what was read."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine, self._name, self._version = engine, name, 0
        self._sent: bytes | None = None  # by a write of which it is not known whether it was committed
        self._lock: _KeptLock | None = None

    def __str__(self) -> str:
        return f"{self._name} (a row of the table {_documents.name} in the node's database)"

    def read(self) -> bytes | None:
        with self._engine.connect() as connection:
            self._version, data = self._read(connection)
        self._sent = None
        return data

    def _read(self, connection: sa.Connection) -> tuple[int, bytes | None]:
        """The version and the content; 0 and None if the document does not exist.

        Raises :class:`IncompleteDocumentError`.
        """
        tables = (_documents, sa.literal(0)), (_parts, _parts.c.number)
        rows = [
            sa.select(number.label("number"), table.c.version, table.c.data).where(table.c.name == self._name)
            for table, number in tables
        ]
        found = sorted(connection.execute(sa.union_all(*rows)), key=lambda row: row.number)  # all as of one moment
        if not found or found[0].number:
            return 0, None
        version, first = found[0].version, bytes(found[0].data)
        parts = [row.data for row in found[1:] if row.version == version]
        if not first.startswith(_IN_PARTS):  # parts beside it are of the first releases that had them
            return version, b"".join([first, *parts])
        if len(parts) != (count := int(first.removeprefix(_IN_PARTS))):
            raise IncompleteDocumentError(
                f"{self} is incomplete: the table {_parts.name} has {len(parts)} of its {count} parts. Restore the "
                f"tables {_documents.name} and {_parts.name} from the same backup"
            )
        return version, b"".join(parts)

    def write(self, data: bytes) -> None:
        mine = _documents.c.name == self._name
        if self._lock is not None:
            self._lock.keep()
        size = self._part_bytes(len(data))
        parts = [data[first : first + size] for first in range(0, len(data), size)] if len(data) > size else []
        with writing(self._engine) as connection:
            found = connection.scalar(sa.select(_documents.c.version).where(mine).with_for_update()) or 0
            if found == self._version + 1 and self._is_sent(connection):
                self._version = found  # that write was committed, and only the reply was lost
            if found != self._version:
                raise DocumentBusyError(
                    f"another process has changed {self}: stop one of the two processes, and start the other again"
                )
            first_row = _IN_PARTS + b"%d" % len(parts) if parts else data
            new = {"name": self._name, "version": found + 1, "data": first_row}
            if found:
                connection.execute(sa.update(_documents).where(mine).values(new))
            else:
                connection.execute(sa.insert(_documents).values(new))
            connection.execute(sa.delete(_parts).where(_parts.c.name == self._name))
            for number, part in enumerate(parts, start=1):
                connection.execute(sa.insert(_parts).values({**new, "number": number, "data": part}))
            self._sent = data
        self._version, self._sent = found + 1, None

    def _part_bytes(self, size: int) -> int:
        """How many bytes of a document of *size* bytes one statement can have."""
        largest = largest_statement(self._engine) if size > _SMALL_BYTES else None
        return max(size, 1) if largest is None else max(_SMALL_BYTES, (largest - _STATEMENT_BYTES) // 2)

    def _is_sent(self, connection: sa.Connection) -> bool:
        """Whether the row has what the write sent of which it is not known whether it was committed."""
        return self._sent is not None and self._read(connection)[1] == self._sent

    def create(self, data: bytes) -> None:
        with writing(self._engine) as connection:
            new = {"name": self._name, "version": 1, "data": data}
            connection.execute(insert_new(connection, _documents), new)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """The lock is a connection's: the server releases it when this process ends or cannot be reached.

        After the connection broke, the lock is taken again, within :data:`_LOOK_SECONDS` and before each :meth:`write`.
        The session of the broken connection is ended if the server still has it, as after an outage of the network.
        If another process has it then, :meth:`write` raises :class:`DocumentBusyError`.
        """
        with contextlib.closing(_KeptLock(self._engine, self._name, str(self))) as lock:
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None


class _KeptLock:
    """The lock of the document *name*, which *label* shows, on the server of *engine*, until :meth:`close`.

    Raises :class:`DocumentBusyError` where another process has it.
    """

    def __init__(self, engine: sa.Engine, name: str, label: str) -> None:
        self._engine, self._name, self._label = engine, name, label
        self._using, self._closed = threading.Lock(), threading.Event()
        self._mark = ""
        self._connection = self._taken()
        self._is_lost = False
        threading.Thread(target=self._keep_again_and_again, name=f"lock of {name}", daemon=True).start()

    def keep(self) -> None:
        """Take the lock again if its connection broke. Raises :class:`DocumentBusyError` once another process had it,
        and what SQLAlchemy raises while the server does not answer."""
        with self._using:
            if self._is_lost:
                raise self._busy()
            if self._closed.is_set() or self._is_held():
                return
            try:
                connection = self._taken()
            except DocumentBusyError as error:
                self._is_lost = True
                _log.warning("lost the lock after its connection broke: %s", error)
                raise
            self._connection.close()
            self._connection = connection

    def close(self) -> None:
        """Release the lock. What the block before has done is done, also if the server does not answer."""
        self._closed.set()
        with self._using, contextlib.suppress(sa.exc.SQLAlchemyError), contextlib.closing(self._connection):
            self._connection.execute(_lock_of(self._connection, self._name).release)

    def _keep_again_and_again(self) -> None:
        while not (self._closed.wait(_LOOK_SECONDS) or self._is_lost):
            with contextlib.suppress(sa.exc.SQLAlchemyError, MillstreamError):
                self.keep()

    def _taken(self) -> sa.Connection:
        """A connection that has taken the lock."""
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            connection.detach()  # nobody else gets it: it may be idle for days
            if connection.dialect.name != "postgresql":
                connection.exec_driver_sql(f"SET SESSION wait_timeout = {_LONGEST_WAIT}")
            lock = _lock_of(connection, self._name)
            if not (connection.scalar(lock.take) or (self._ended_former(connection) and connection.scalar(lock.take))):
                raise self._busy()
            mark = secrets.token_hex()
            connection.execute(_lock_of(connection, mark).take)  # ids of sessions are used again: no one has this lock
            self._mark = mark
        except BaseException:
            connection.close()
            raise
        return connection

    def _ended_former(self, connection: sa.Connection) -> bool:
        """End the session in which this process took the lock before, by *connection*; whether there was one."""
        if not self._mark:
            return False
        lock = _lock_of(connection, self._mark)
        holder = connection.scalar(lock.holder)
        if holder is None:
            return False
        with contextlib.suppress(sa.exc.SQLAlchemyError):  # it has just ended
            connection.execute(lock.end, {"holder": holder})
        for _ in range(_END_LOOKS):
            if connection.scalar(lock.holder) is None or self._closed.wait(_END_SECONDS):
                break
        return True

    def _is_held(self) -> bool:
        try:
            return bool(self._connection.scalar(_lock_of(self._connection, self._name).is_held))
        except sa.exc.SQLAlchemyError:  # also of a connection that broke before
            return False

    def _busy(self) -> DocumentBusyError:
        return DocumentBusyError(f"another process is using {self._label}: {_WAIT_OR_STOP}")


class DatabaseDocuments:
    """The documents in the database of *engine*, on a server; their table is made where it is absent."""

    def __init__(self, engine: sa.Engine) -> None:
        make_tables_once(engine, metadata)
        self._engine = engine

    def document(self, name: str) -> DatabaseDocument:
        return DatabaseDocument(self._engine, name)

    def versions(self, folder: str) -> Mapping[str, int]:
        start = f"{folder}/"
        query = sa.select(_documents.c.name, _documents.c.version).order_by(_documents.c.name)
        with self._engine.connect() as connection:
            return {name: version for name, version in connection.execute(query) if name.startswith(start)}


def shared_key(document: Document) -> bytes:
    """The key of 32 bytes in *document*, created if missing: the same for each process that asks."""
    while (key := document.read()) is None:
        with contextlib.suppress(DocumentBusyError):  # another process has just created one
            document.write(secrets.token_bytes(KEY_BYTES))
    return key


def copy_documents(
    source: Documents,
    target: Documents,
    folder: str,
    *,
    stays: Callable[[str, bytes, bytes], bool] = lambda _name, _there, _copied: False,
) -> int:
    """Put the documents of *folder* in *source* into *target*; returns how many they are. One that is there is not
    replaced if it *stays* (name, its content, the content in *source*)."""
    names = source.versions(folder)
    for name in names:
        if (data := source.document(name).read()) is not None:
            goal = target.document(name)
            there = goal.read()
            if there != data and not (there is not None and stays(name, there, data)):
                goal.write(data)
    return len(names)


class _LockStatements(NamedTuple):
    """The statements that take the lock of a connection without waiting, release it, and tell whether it has it; those
    that find the session that has it (NULL: none), and end the session ``:holder``."""

    take: sa.TextClause
    release: sa.TextClause
    is_held: sa.TextClause
    holder: sa.TextClause
    end: sa.TextClause


def _lock_of(connection: sa.Connection, name: str) -> _LockStatements:
    """The statements for the lock called *name*."""
    digest = hashlib.sha256(name.encode()).digest()
    if connection.dialect.name == "postgresql":
        key = int.from_bytes(digest[:8], "big", signed=True)
        return _LockStatements(
            sa.text(f"SELECT pg_try_advisory_lock({key})"),
            sa.text(f"SELECT pg_advisory_unlock({key})"),
            sa.text(f"SELECT EXISTS ({_HOLDER} AND pid = pg_backend_pid())").bindparams(key=key),
            sa.text(_HOLDER).bindparams(key=key),
            sa.text("SELECT pg_terminate_backend(:holder)"),
        )
    # locks of MariaDB and MySQL are the server's, whatever the database
    words = f"CONCAT('millstream ', LEFT(SHA2(CONCAT(DATABASE(), '{digest.hex()}'), 256), 40))"
    return _LockStatements(
        sa.text(f"SELECT GET_LOCK({words}, 0)"),
        sa.text(f"SELECT RELEASE_LOCK({words})"),
        sa.text(f"SELECT IS_USED_LOCK({words}) = CONNECTION_ID()"),
        sa.text(f"SELECT IS_USED_LOCK({words})"),
        sa.text("KILL :holder"),
    )
