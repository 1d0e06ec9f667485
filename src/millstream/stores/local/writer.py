"""The resources for writing to a local store: drafts and locks, opened at the first write."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from millstream.core.durable import write_durably
from millstream.stores.folders import make_folder, open_plain
from millstream.stores.local.atomic_files import AtomicFile, AtomicFileGroup, AtomicFiles, clear_dead
from millstream.stores.local.disk_names import DiskNames, SpellingProbe
from millstream.stores.local.item_locks import ItemLocks
from millstream.stores.local.sidecar_files import sidecar_digest
from millstream.stores.protocol import StoreError

Resource = TypeVar("Resource")

HIDDEN = ".millstream"
"""The folder beside the spaces that holds sidecars, drafts and locks."""

SIDECARS = (HIDDEN, "sidecars")
"""The folder of the sidecars."""

_DRAFTS = (HIDDEN, "drafts")

FORMAT = b"millstream local store 1\n"

_WHOLE_DISK = b"\0"
"""The digest whose lock all writers hold as well where the disk does not distinguish the names of all items."""


class LocalWriter:
    """The drafts and locks of one process in the store at *root*; a forked child gets its own. Thread-safe."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._spelling = SpellingProbe(root, HIDDEN)
        self._files = _PerProcess(partial(_new_files, root, self._spelling))  # no method: drafts go with their writer
        self._locks = _PerProcess(partial(_new_locks, root, self._spelling))

    def start(self) -> None:
        """Open the locks now, so that :meth:`disk_names` knows the disk."""
        self._locks.get()

    def disk_names(self) -> DiskNames | None:
        """The names on the disk, for one operation; None where each name is that of one item."""
        return self._spelling.names()

    def draft(self) -> AbstractContextManager[AtomicFile]:
        """A new draft; see :meth:`AtomicFiles.draft`."""
        return self._files.get().draft()

    def group(self, count: int) -> AbstractContextManager[AtomicFileGroup]:
        """About *count* drafts that are synced together; see :meth:`AtomicFiles.group`."""
        return self._files.get().group(count)

    def lock(self, content_id: str) -> AbstractContextManager[None]:
        """Hold the lock of *content_id* for the block; see :class:`ItemLocks`."""
        return self.lock_all((sidecar_digest(content_id),))

    def lock_all(self, digests: Iterable[bytes]) -> AbstractContextManager[None]:
        """Hold the locks of all items with these sidecar digests for the block; see :class:`ItemLocks`."""
        return self._locks.get().hold_all(self._with_similar(digests))

    def try_lock_all(self, digests: Iterable[bytes]) -> AbstractContextManager[object] | None:
        """:meth:`lock_all`, or None where another process or thread holds one of them; see :class:`ItemLocks`."""
        return self._locks.get().try_all(self._with_similar(digests))

    def lock_everything(self) -> AbstractContextManager[None]:
        """Hold the locks of all items for the block: nobody stores any, or makes a space."""
        return self._locks.get().hold_every()

    def _with_similar(self, digests: Iterable[bytes]) -> Iterable[bytes]:
        return digests if self.disk_names() is None else (*digests, _WHOLE_DISK)

    def clear_dead(self) -> None:
        """Remove the drafts of writers that have ended; where the disk can only be read they stay."""
        with contextlib.suppress(OSError):
            clear_dead(Path(self._root, *_DRAFTS))


def _new_files(root: str, spelling: SpellingProbe) -> AtomicFiles:
    _prepare(root, spelling)
    return AtomicFiles(root, _DRAFTS)


def _new_locks(root: str, spelling: SpellingProbe) -> ItemLocks:
    _prepare(root, spelling)
    return ItemLocks(root, (HIDDEN, "locks"))


def _prepare(root: str, spelling: SpellingProbe) -> None:
    """Make what all writers need where it is missing."""
    os.close(make_folder(root, (HIDDEN,)))
    _check_format(Path(root, HIDDEN, "format"))
    spelling.write()


class _PerProcess(Generic[Resource]):
    """What *make* makes at first use, and again in a forked child. Thread-safe."""

    def __init__(self, make: Callable[[], Resource]) -> None:
        self._make = make
        self._making = threading.Lock()
        self._made: tuple[int, Resource] | None = None

    def get(self) -> Resource:
        made = self._made
        if made is None or made[0] != os.getpid():
            with self._making:
                made = self._made
                if made is None or made[0] != os.getpid():
                    made = self._made = os.getpid(), self._make()
        return made[1]


def _check_format(path: Path) -> None:
    """Leave a mark of the format in a new store; refuse a store of another format."""
    try:
        with open_plain(path) as file:
            found = file.read(4096)
    except FileNotFoundError:
        write_durably(path, FORMAT)  # in the place of a link or a pipe, too
        return
    if found != FORMAT:
        raise StoreError(
            f"{path} states format {found[:60]!r}, but this release writes {FORMAT!r}: use the release "
            "that created the store"
        )
