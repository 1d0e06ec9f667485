"""What is wrong with a database file of SQLite, in words that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import sqlalchemy as sa

from millstream.core.errors import MillstreamError
from millstream.core.private_files import make_private_file

_HEADER = 100
_MAGIC = b"SQLite format 3\0"
_DAMAGED = (
    "restore the file from a backup, or move the file away together with its -wal and -shm files and rebuild the "
    'database (docs/how-to/recover.md, "The node\'s database is lost")'
)
_REASONS = {
    sqlite3.SQLITE_NOTADB: ("is not an SQLite database", ""),
    sqlite3.SQLITE_CORRUPT: ("is damaged", ""),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "give this user the right to read and write the file and its folder"),
    sqlite3.SQLITE_READONLY: ("cannot be written", "give this user the right to write the file and its folder"),
    sqlite3.SQLITE_PERM: ("cannot be opened", "give this user the right to read and write the file and its folder"),
}
_MAY_PASS = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
_DISK_REASONS = {
    sqlite3.SQLITE_FULL: ("cannot be written", "free some space on its disk"),
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written",
        "free some space if its disk is full, or check the disk for errors",
    ),
}


class DatabaseFileError(MillstreamError):
    """The database cannot be used."""


class DatabaseFileUnavailableError(DatabaseFileError):
    """The database cannot be used at present, for want of something that the process or the machine lacks."""

    transient: ClassVar[bool] = True


def open_database(
    path: Path, prefixes: Sequence[str], *, if_damaged: str = _DAMAGED, cache_kib: int = 2048
) -> sa.Engine:
    """The database in the file *path*, which is made for its owner alone; each commit is synced to the disk.

    *prefixes* begin the names of its tables, *if_damaged* says what to do about a damaged file, *cache_kib* is the
    memory of a connection. Raises :class:`DatabaseFileError`, now or from the engine, also if the file is replaced.
    """
    require_database(path, prefixes, if_damaged=if_damaged)
    make_private_file(path)  # SQLite gives its mode to the files beside it
    place = sa.URL.create("sqlite", database=str(path))
    # Each connection has a cache of its own: the one that was used last has the pages that are needed next.
    engine = sa.create_engine(place, connect_args={"timeout": 30}, pool_use_lifo=True, hide_parameters=True)

    def make_durable(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{cache_kib}")

    sa.event.listen(engine, "connect", make_durable)
    _refuse_replaced(engine, path)
    explain_errors(engine, path, if_damaged=if_damaged)
    return engine


def _refuse_replaced(engine: sa.Engine, path: Path) -> None:
    """Let *engine* lend no connection once another file, or none, is at *path*: what the old ones commit would be lost,
    and new ones would make an empty file."""
    first: tuple[int, int] | None = None

    def identity() -> tuple[int, int] | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def connected(*_: object) -> None:
        nonlocal first
        first = first or identity()  # of the file as it was opened: some file systems change it then

    def check(*_: object) -> None:
        if first is not None and identity() != first:
            if not path.exists():
                raise DatabaseFileError(
                    f"{path} was deleted while this process had it open: stop all processes of the node, and restore "
                    "the file from a backup before one is started again (it would begin with an empty file)"
                )
            raise DatabaseFileError(
                f"{path} was replaced while this process had it open: stop all processes of the node that use the "
                "file, and start them again"
            )

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "do_connect", check)
    sa.event.listen(engine, "checkout", check)


def require_database(path: Path, prefixes: Sequence[str], *, if_damaged: str = _DAMAGED) -> None:
    """Raise :class:`DatabaseFileError` where there is a file at *path* that cannot be a database of ours.

    That is one that is cut off, that is not a database at all, or whose tables have names none of which begins with one
    of *prefixes*.
    """
    if not path.exists() or not path.is_file() or not path.stat().st_size:
        return
    with explained(path, if_damaged):
        if _is_cut_off(path):
            raise DatabaseFileError(f"{path} is damaged (it is truncated): {if_damaged}")
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if names and not any(name.startswith(tuple(prefixes)) for name in names):
        raise DatabaseFileError(
            f"{path} is a database of another program (it has the table {names[0]!r}): choose another "
            "folder, or move the file"
        )


@contextlib.contextmanager
def explained(path: Path, if_damaged: str = _DAMAGED) -> Iterator[None]:
    """Raise :class:`DatabaseFileError` for an error of the file at *path*, and others as they are."""
    try:
        yield
    except sqlite3.Error as error:
        explanation = _explain(path, error, if_damaged, _REASONS | _DISK_REASONS)
        if explanation is None:
            raise
        raise explanation from error
    except PermissionError as error:
        raise DatabaseFileError(f"cannot read {path}: give this user the right to read and write the file") from error


def explain_errors(engine: sa.Engine, path: Path, *, if_damaged: str = _DAMAGED) -> None:
    """Let *engine* raise :class:`DatabaseFileError` for errors of its file, which is at *path*."""

    def explain(context: sa.ExceptionContext) -> None:
        explanation = _explain(path, context.original_exception, if_damaged)
        if explanation is not None:
            raise explanation from context.original_exception

    sa.event.listen(engine, "handle_error", explain)


def _explain(
    path: Path, error: BaseException, if_damaged: str, reasons: Mapping[int, tuple[str, str]] = _REASONS
) -> DatabaseFileError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    found = reasons.get(code)
    if found is None:
        return None
    if code in _MAY_PASS and (lack := _lack(path.parent)):
        return DatabaseFileUnavailableError(f"{path} {found[0]} ({lack[0]}): {lack[1]}")
    return DatabaseFileError(f"{path} {found[0]} ({error}): {found[1] or if_damaged}")


def _lack(folder: Path) -> tuple[str, str] | None:
    """What is lacking, and what to do, where SQLite could not use a file in *folder* for another reason than rights.

    Not by opening the file: closing it again would release the locks that this process has on it.
    """
    try:
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return os.strerror(errno.EROFS), "check the disk for errors, and mount its file system for writing"
        os.close(os.open(folder, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return os.strerror(error.errno), "raise the limit on open files of this process (`ulimit -n`)"
    return None


def _is_cut_off(path: Path) -> bool:
    """Whether the file has fewer pages than it says. What is still in its log is not counted."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        return False
    with path.open("rb") as file:
        header = file.read(_HEADER)
    size = path.stat().st_size
    if not header.startswith(_MAGIC[: len(header)]):
        return False  # SQLite says what it is not
    page = int.from_bytes(header[16:18], "big")
    return len(header) < _HEADER or size < int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
