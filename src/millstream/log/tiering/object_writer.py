"""Writing sealed objects: stored, and read back from the first byte to the last."""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import msgspec

from millstream.log.backend import StoredBlock
from millstream.log.errors import DamagedLogError, StorageError, StorageFullError
from millstream.log.ids import IdRange
from millstream.log.tiering.objects import TierObjects
from millstream.log.tiering.seal import NAME_DIGITS, find_fault, find_fault_of_parquet, seal
from millstream.log.tiering.sealed_objects import ParquetCopy, SealedObject

_log = logging.getLogger(__name__)


class _FaultError(Exception):
    """An object does not read back as it was written; the text says what is wrong."""


class ObjectWriter:
    """Writes sealed objects of *log* into *folder* of *objects*.

    With *parquet* each has a Parquet file beside it; ``in_store`` is kept with the row.
    """

    def __init__(
        self, log: str, objects: TierObjects, folder: str, *, parquet: bool = False, in_store: bool = False
    ) -> None:
        self._log, self._objects, self._folder = log, objects, folder
        self._parquet, self._in_store = parquet, in_store

    def write(self, ids: IdRange, blocks: Iterable[StoredBlock], suffix: str = "") -> SealedObject:
        """Write *blocks*, which are those of *ids*; returns the row. The object's name ends with *suffix*.

        Raises :class:`DamagedLogError` where they are damaged or other ones, and :class:`StorageError` where the object
        does not come back as it was written.
        """
        with _temporary_file() as file:
            row = seal(self._log, self._folder, blocks, file, suffix)
            if (row.first_id, row.last_id) != (ids.first, ids.last):
                raise DamagedLogError(
                    f"ids {ids.first} to {ids.last} of log {self._log!r} were to be moved to the tier, "
                    f"but {row.first_id} to {row.last_id} were found. Restore the log from a backup; `millstream log "
                    f"verify {self._log}` lists all damage"
                )
            return self._store_twice(row, file)

    def _store_twice(self, row: SealedObject, file: BinaryIO) -> SealedObject:
        """Store *file*, the object of *row*; once more, under a name of its own, where it does not come back.

        Another process that seals the same blocks uses the same name, and may have freed them by now. So an object
        under that name is never deleted here.
        """
        try:
            return self._store(row, file)
        except _FaultError as fault:
            _log.warning("%s/%s is stored again under another name: %s", self._objects.url, row.name, fault)
        random_digits = secrets.token_hex(NAME_DIGITS // 2)
        own = msgspec.structs.replace(row, name=row.name.replace(row.sha256[:NAME_DIGITS], random_digits))
        try:
            return self._store(own, file)
        except _FaultError as fault:
            self._objects.delete(own.name)
            self._objects.delete(own.parquet_name)
            raise StorageError(
                f"{self._objects.url}/{own.name} reads back differently from what was written: {fault}. Nothing "
                "was freed; repair the object store, and run the command again"
            ) from fault

    def _store(self, row: SealedObject, file: BinaryIO) -> SealedObject:
        """Store *file*, the object of *row*, and its Parquet file; raises :class:`_FaultError`."""
        self._put(row.name, row.sha256, file, lambda: find_fault(self._objects, self._log, row))
        copy = self._write_parquet(row, file) if self._parquet else None
        return msgspec.structs.replace(row, parquet=copy, in_store=self._in_store)

    def _write_parquet(self, row: SealedObject, sealed: BinaryIO) -> ParquetCopy:
        from millstream.log.tiering.parquet import write_parquet

        with _temporary_file() as file:
            copy = write_parquet(row, sealed, file)
            self._put(copy.name, copy.sha256, file, lambda: find_fault_of_parquet(self._objects, copy))
        return copy

    def _put(self, name: str, sha256: str, file: BinaryIO, find: Callable[[], str | None]) -> None:
        file.seek(0)
        self._objects.put(name, file, sha256=sha256)
        fault = find()
        if fault is not None:
            raise _FaultError(fault)


@contextlib.contextmanager
def _temporary_file() -> Iterator[BinaryIO]:
    """A file that is gone at the end of the block; its errors are raised as :class:`StorageError`."""
    try:
        with tempfile.TemporaryFile(prefix="millstream-tier-") as file:
            yield file
    except OSError as error:
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(
            f"cannot write a temporary file in {tempfile.tempdir or 'the folder for temporary files'}: "
            f"{error.strerror or error}; free space there, or set TMPDIR to another folder"
        ) from error
