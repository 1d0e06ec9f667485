"""Giving the free pages of an SQLite file back to its file system, in place."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.core.amounts import size_text
from millstream.core.errors import BusyError, MillstreamError
from millstream.core.lock_holders import describe_lock_holders

_FRAME_HEADER = 24
"""Bytes before each page in a write-ahead log (https://sqlite.org/fileformat2.html#the_write_ahead_log)."""

_MARGIN = 1 << 20
"""Bytes beyond the pages: indexes that are built anew may be filled less, and files take whole blocks of the disk."""


class FileSizes(msgspec.Struct, frozen=True):
    """Bytes of a database file and its write-ahead log, ``before`` and ``after`` it was vacuumed."""

    before: int
    after: int

    def __str__(self) -> str:
        freed = size_text(max(self.before - self.after, 0))
        return f"had {size_text(self.before)}, has {size_text(self.after)}, {freed} freed"


class NoSpaceError(MillstreamError):
    """There is too little disk space to vacuum a file."""


class FileInUseError(BusyError):
    """Another process reads an earlier content of the file, or writes it, so that it cannot shrink."""


def vacuum(connection: sqlite3.Connection, path: Path) -> FileSizes:
    """Rewrite the file at *path* without its free pages, by a *connection* to it; one without free pages stays as is.

    SQLite does this in one transaction, so that a crash or a power loss leaves the content as it was. Others can read
    meanwhile, and wait if they write. Raises :class:`NoSpaceError` and :class:`FileInUseError` before anything is
    changed, the latter also if the file was rewritten and cannot shrink yet; :class:`sqlite3.Error`.
    """
    before = _bytes(path)
    with _explained(path):
        _checkpoint(connection, path)
        if _pragma(connection, "freelist_count"):
            _require_space(connection, path)
            _rewrite(connection)
            _checkpoint(connection, path)
    return FileSizes(before, _bytes(path))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from None
        if code == sqlite3.SQLITE_BUSY:
            raise FileInUseError(f"{path} is being written: {_holders(path)}") from error
        if code == sqlite3.SQLITE_FULL:
            raise NoSpaceError(f"cannot vacuum {path}: {error}; free some space, then try again") from error
        raise


def _bytes(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _checkpoint(connection: sqlite3.Connection, path: Path) -> None:
    """Move the whole write-ahead log into the file, which is then cut to its last page."""
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise FileInUseError(f"{path} cannot shrink while another process is using it: {_holders(path)}")


def _holders(path: Path) -> str:
    return describe_lock_holders(path, *(path.with_name(f"{path.name}{end}") for end in ("-shm", "-wal")))


def _rewrite(connection: sqlite3.Connection) -> None:
    connection.set_progress_handler(lambda: None, 10_000)  # a call of Python, in which Ctrl-C is noticed
    try:
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")
    finally:
        connection.set_progress_handler(None, 0)


def _require_space(connection: sqlite3.Connection, path: Path) -> None:
    """Raise :class:`NoSpaceError` unless there is room for two copies: a temporary one, and the write-ahead log."""
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    copy = pages * _pragma(connection, "page_size") + _MARGIN
    log = copy + pages * _FRAME_HEADER
    temporary = temporary_folder()
    if temporary.stat().st_dev == path.parent.stat().st_dev:
        advice = "free space there, or set the environment variable SQLITE_TMPDIR to a folder on another disk, for half"
        _require_free(path, path.parent, copy + log, advice)
    else:
        _require_free(path, path.parent, log, "free space there")
        advice = "free space there, or set the environment variable SQLITE_TMPDIR to a folder on a disk that has it"
        _require_free(path, temporary, copy, advice)


def _require_free(path: Path, folder: Path, needed: int, advice: str) -> None:
    missing = needed - shutil.disk_usage(folder).free
    if missing > 0:
        raise NoSpaceError(
            f"cannot vacuum {path}: this needs {size_text(needed)} on the disk of {folder} for a while, and "
            f"{size_text(missing)} are missing; {advice}"
        )


def temporary_folder() -> Path:
    """The folder in which SQLite puts temporary files (https://sqlite.org/tempfiles.html, section 5)."""
    return next(folder for folder in _temporary_folders() if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK))


def _temporary_folders() -> Iterator[Path]:
    yield from (Path(os.environ[name]) for name in ("SQLITE_TMPDIR", "TMPDIR") if os.environ.get(name))
    yield from map(Path, ("/var/tmp", "/usr/tmp", "/tmp", "."))  # noqa: S108 - SQLite's own list
