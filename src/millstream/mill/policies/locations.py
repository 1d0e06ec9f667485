"""The location of policy files: a folder, or a space of a store."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from millstream.core.clock import Clock, SystemClock
from millstream.core.durable import file_lock, sync_folder, write_durably
from millstream.core.retry import RetryPolicy
from millstream.mill.errors import PolicyError
from millstream.stores.protocol import (
    AlreadyExistsError,
    ItemNotFoundError,
    SpaceNotFoundError,
    Store,
    all_entries,
)

Answer = TypeVar("Answer")

MAX_BYTES = 16 * 1024 * 1024
"""A larger file is not a policy."""

LOCK_SECONDS = 10.0
"""How long the lock of a space of policies is believed to be held by a process that runs."""

_LOCK = "saving.lock"
_PAUSE = 0.1


class PolicyLocation(Protocol):
    """Files by name; a name may have folders in it."""

    @property
    def where(self) -> str:
        """For messages."""
        ...

    def read(self, name: str) -> bytes | None:
        """The file's bytes, at most one more than :data:`MAX_BYTES`; None where there is no such file."""
        ...

    def names(self, folder: str) -> Sequence[str]:
        """The names of the files in *folder*, sorted."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Make a new file; False where it exists already."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Make the file, or replace it."""
        ...

    def saving(self) -> AbstractContextManager[None]:
        """Hold others off, as far as the place can, while files are read and written."""
        ...


class FolderLocation:
    """Policy files in a local *folder*, made when something is first saved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        return str(self._folder)

    def read(self, name: str) -> bytes | None:
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PolicyError(f"cannot read {self._folder / name}: {error.strerror}") from error

    def names(self, folder: str) -> Sequence[str]:
        try:
            return sorted(path.name for path in (self._folder / folder).iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return []

    def create(self, name: str, data: bytes) -> bool:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{secrets.token_hex(6)}")
        write_durably(draft, data)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        sync_folder(path.parent)
        return True

    def write(self, name: str, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._folder / name, data)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with file_lock(self._folder / ".lock"):
            yield


class SpaceLocation:
    """Policy files in *space* of *store*, made when something is first saved.

    Calls that fail for a transient reason are made again, but for the one that makes a new file: after a reply that was
    lost it would find its own file, and take it for another's.
    """

    def __init__(self, store: Store, space: str, clock: Clock | None = None) -> None:
        self._store, self._space = store, space
        self._clock = clock or SystemClock()

    @property
    def where(self) -> str:
        return f"space {self._space!r} of {self._store.url}"

    def read(self, name: str) -> bytes | None:
        def read() -> bytes:
            with self._store.open(self._space, name) as file:
                return file.read(MAX_BYTES + 1)

        try:
            return self._call(read)
        except (ItemNotFoundError, SpaceNotFoundError):
            return None

    def names(self, folder: str) -> Sequence[str]:
        prefix = f"{folder}/"
        try:
            found = self._call(lambda: list(all_entries(self._store, self._space, prefix=prefix)))
            return [entry.content_id[len(prefix) :] for entry in found]
        except SpaceNotFoundError:
            return []

    def create(self, name: str, data: bytes) -> bool:
        self._make_space()
        try:
            self._put(name, data, create_only=True)
        except AlreadyExistsError:
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        self._make_space()
        self._call(lambda: self._put(name, data))

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Hold others off with an item that only one can create; that of a process that was killed is removed in time.

        So long as a saving takes, which is a few requests, no other can begin.
        """
        holder = secrets.token_hex(16).encode()
        self._lock(holder)
        try:
            yield
        finally:
            self._unlock(holder)

    def _lock(self, own: bytes) -> None:
        seen, since = b"", self._clock.monotonic()
        while not self.create(_LOCK, own):
            holder = self.read(_LOCK) or b""
            now = self._clock.monotonic()
            if holder != seen:
                seen, since = holder, now
            elif holder and now - since >= LOCK_SECONDS:
                self._unlock(holder)
            self._clock.sleep(_PAUSE)

    def _unlock(self, holder: bytes) -> None:
        if self.read(_LOCK) == holder:
            with contextlib.suppress(ItemNotFoundError, SpaceNotFoundError):
                self._call(lambda: self._store.delete(self._space, _LOCK))

    def _make_space(self) -> None:
        self._call(lambda: self._store.create_space(self._space))

    def _call(self, function: Callable[[], Answer]) -> Answer:
        return RetryPolicy().call(function, self._clock)

    def _put(self, name: str, data: bytes, *, create_only: bool = False) -> None:
        self._store.put(self._space, name, io.BytesIO(data), mimetype="application/json", create_only=create_only)
