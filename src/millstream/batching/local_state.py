"""The state of a batch service as a file on the host of a Spark stream, where states are kept in a database.

The stream writes the file, and the database gets what it contains. If the database cannot be reached at the end of the
stream, the file stays. Whoever continues on this host takes the newer one of the two.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec

from millstream.batching.errors import BatchServiceError
from millstream.batching.service_state import ServiceState, decode_state, naming_state
from millstream.batching.snapshot import decode_snapshot
from millstream.core.documents import Document, FileDocument

_log = logging.getLogger(__name__)


class StateFile(NamedTuple):
    """The file *path* with the state of a batch service; ``keep`` puts what is written there into the node's database
    now, so that other processes of the node see it."""

    path: Path
    keep: Callable[[], None]


@contextlib.contextmanager
def local_state(saved: Document, file: FileDocument) -> Iterator[StateFile]:
    """The state *saved* in a database as *file*, whose content it gets at the end of the block at the latest.

    The file is removed then; it stays if the database does not take it. If it is there at the beginning with a newer
    state than the database, the block continues from it. Raises :class:`BatchServiceError` if the database has no state
    and the file has one, and :class:`~millstream.core.documents.DocumentBusyError` if another process uses the file or
    has changed the state in the database.
    """
    with file.alone():
        kept, unsaved = saved.read(), file.read()
        if kept is None:
            _require_blank(unsaved, saved, file)
            file.path.unlink(missing_ok=True)
        elif not is_newer(unsaved, kept):
            file.write(kept)  # else the database gets the newer one of the file, at the end at the latest
        is_checked, begun = False, file.read()

        def keep() -> None:
            nonlocal kept, is_checked
            written = file.read()
            if written is None or (written == kept and is_checked):
                return
            saved.write(written)  # the first time also to learn whether another process has changed it
            kept, is_checked = written, True

        refused = True
        try:
            yield StateFile(file.path, keep)
            refused = False
        finally:
            try:
                if file.read() not in ((kept, begun) if refused else (kept,)):
                    keep()  # who was refused, and wrote nothing, leaves the state to those who are at work
            except Exception:
                _log.warning("the database did not take the state: it stays in %s for the next start", file)
                raise
            if file.read() in (None, kept):
                file.path.unlink(missing_ok=True)


class UnsavedState:
    """The state *saved* in a database, or the newer one in *file* that a stream could not save there.

    The file is removed once the database has a newer state.
    """

    def __init__(self, saved: Document, file: FileDocument) -> None:
        self._saved, self._file = saved, file
        self._is_used = False

    def __str__(self) -> str:
        return str(self._file if self._is_used else self._saved)

    def read(self) -> bytes | None:
        saved, unsaved = self._saved.read(), self._file.read()
        self._is_used = is_newer(unsaved, saved)
        return unsaved if self._is_used else saved

    def write(self, data: bytes) -> None:
        self._saved.write(data)
        if self._is_used:
            self._file.path.unlink(missing_ok=True)
            self._is_used = False

    def create(self, data: bytes) -> None:
        self._saved.create(data)

    def alone(self) -> AbstractContextManager[None]:
        return self._saved.alone()


def is_newer(unsaved: bytes | None, saved: bytes | None) -> bool:
    """Whether *unsaved* is a state of the same logs as the state *saved*, after later messages."""
    one, other = _decoded(unsaved), _decoded(saved)
    if one is None or other is None:
        return False
    return (one.log, one.output) == (other.log, other.output) and one.position > other.position


def _require_blank(unsaved: bytes | None, saved: Document, file: FileDocument) -> None:
    state = _decoded(unsaved)
    if state is None:
        return
    with naming_state(file):
        is_blank = decode_snapshot(state.snapshot)[1].clock is None
    if not is_blank:
        raise BatchServiceError(
            f"{saved} is missing, but {file} has a state of the same output, after message {state.position}: restore "
            "the node's database from a backup, or move this file away to replay the log"
        )


def _decoded(data: bytes | None) -> ServiceState | None:
    try:
        return None if data is None else decode_state(data)
    except msgspec.DecodeError:
        return None
