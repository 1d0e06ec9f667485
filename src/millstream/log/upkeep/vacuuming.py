"""Vacuuming a log: the space of blocks that were freed goes back to the file system."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.core.sqlite_vacuum import FileSizes
from millstream.log.backend import Backend, VacuumedByServer, Vacuums
from millstream.log.errors import WriterBusyError
from millstream.log.writing.lease import current_writer


class VacuumResult(msgspec.Struct, frozen=True, kw_only=True):
    """The ``sizes`` of the file of ``log`` before and after it was vacuumed; None for a log that is not in one file.

    ``statements`` are for the administrator of a database server, who can free the space in the tables of the log.
    """

    log: str
    sizes: FileSizes | None = None
    statements: Sequence[str] = ()


def vacuum_log(backend: Backend, log: str) -> VacuumResult:
    """Vacuum the file in which *log* is, or find out that it is in none; see :meth:`millstream.log.Log.vacuum`."""
    if isinstance(backend, Vacuums):
        for name in backend.logs():
            _refuse_while_written(backend, name)
        return VacuumResult(log=log, sizes=backend.vacuum())
    statements = backend.vacuum_statements(log) if isinstance(backend, VacuumedByServer) else ()
    return VacuumResult(log=log, statements=statements)


def _refuse_while_written(backend: Backend, log: str) -> None:
    """Raise :class:`WriterBusyError`: a commit would fail that waits for a large file for longer than a minute."""
    writer = current_writer(backend, log)
    if writer is not None:
        raise WriterBusyError(
            f"cannot vacuum {backend.url}: its log {log!r} is being written by {writer}. Stop that process, and "
            "repeat the command"
        )
