"""Small files that are kept outside the node: a plain folder, or a space of a storage provider."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from millstream.anchoring.errors import LedgerUnavailableError
from millstream.core.durable import write_durably
from millstream.stores import ItemNotFoundError, SpaceNotFoundError, Store, StoreError, all_entries, open_provider
from millstream.stores.folders import NotPlainFileError, make_folder, open_folder, open_plain

MAX_FILE_BYTES = 32 << 20
"""The most bytes that are read of one file: a full bundle of the longest entries has half of that."""


class PublishedFiles(Protocol):
    """Files by their relative path. Thread-safe. All methods raise :class:`LedgerUnavailableError`."""

    def read(self, path: str) -> bytes | None:
        """The bytes of the file, None where there is none."""
        ...

    def put(self, path: str, data: bytes, media: str) -> None:
        """Put *data*, of the media type *media*, at *path*: whole and durably, or not at all."""
        ...

    def delete_below(self, path: str) -> None:
        """Remove all files below the folder *path*; there may be none."""
        ...


class FolderFiles:
    """Files in the folder *name* of *root*. With *create* that is made where it is absent, for its owner alone.

    Others may be allowed to write below *root*: no symbolic link there is followed, and only plain files are read.
    """

    def __init__(self, root: Path, name: str, *, create: bool = False) -> None:
        self._root = root
        self._folder = root / name
        self._create = create

    def __str__(self) -> str:
        return str(self._folder)

    def read(self, path: str) -> bytes | None:
        with self._our_errors("read", path):
            self._require_root()
            try:
                with self._opened(path, open_folder) as (folder, name), open_plain(name, folder=folder) as file:
                    return file.read(MAX_FILE_BYTES)
            except NotPlainFileError:
                raise
            except FileNotFoundError:
                return None

    def put(self, path: str, data: bytes, media: str) -> None:  # noqa: ARG002 - a folder keeps no media types
        with self._our_errors("write", path):
            self._require_root()
            with self._opened(path, make_folder) as (folder, name):
                write_durably(name, data, folder=folder)

    def delete_below(self, path: str) -> None:
        with (
            self._our_errors("remove", path),
            contextlib.suppress(FileNotFoundError),
            self._opened(path, open_folder) as (folder, name),
        ):
            shutil.rmtree(name, dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self, path: str, open_step_by_step: Callable[[str, Sequence[str]], int]) -> Iterator[tuple[int, Path]]:
        """The folder of the file *path*, as a descriptor, and the name of the file in it."""
        *above, name = (self._folder / path).relative_to(self._root).parts
        folder = open_step_by_step(str(self._root), above)
        try:
            yield folder, Path(name)
        finally:
            os.close(folder)

    def _require_root(self) -> None:
        if self._create:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not self._root.is_dir():
            raise LedgerUnavailableError(f"there is no folder {self._root}: mount or create this folder")

    @contextlib.contextmanager
    def _our_errors(self, act: str, path: str) -> Iterator[None]:
        where = self._folder / path
        try:
            yield
        except NotADirectoryError as error:
            raise LedgerUnavailableError(
                f"cannot {act} {where}: a part of this path below {self._root} is a symbolic link or a file; replace "
                "it by a folder"
            ) from error
        except OSError as error:
            raise LedgerUnavailableError(f"cannot {act} {where}: {error.strerror or error}") from error


class StoreFiles:
    """Files as items of the space *space* of *store*."""

    def __init__(self, store: Store, space: str) -> None:
        self._store = store
        self._space = space
        self._is_made = False

    def __str__(self) -> str:
        return f"the space {self._space!r} of {self._store.url}"

    def read(self, path: str) -> bytes | None:
        with self._our_errors("read", path):
            try:
                with self._store.open(self._space, path) as file:
                    return file.read(MAX_FILE_BYTES)
            except ItemNotFoundError:
                return None
            except SpaceNotFoundError:
                if self._store.has_space(self._space):  # which fails for a disk that is not mounted
                    raise
                return None

    def put(self, path: str, data: bytes, media: str) -> None:
        with self._our_errors("write", path):
            if not self._is_made:
                if not self._store.has_space(self._space):  # which fails for a disk that is not mounted
                    self._store.create_space(self._space)
                self._is_made = True
            self._store.put(self._space, path, io.BytesIO(data), mimetype=media)

    def delete_below(self, path: str) -> None:
        with self._our_errors("remove", path):
            for entry in all_entries(self._store, self._space, prefix=f"{path}/"):
                with contextlib.suppress(ItemNotFoundError):
                    self._store.delete(self._space, entry.content_id)

    @contextlib.contextmanager
    def _our_errors(self, act: str, path: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise LedgerUnavailableError(f"cannot {act} {path!r} in {self}: {error}") from error


def open_files(place: str, folder: str) -> PublishedFiles:
    """The files below *folder* of *place*: the path of a folder that exists, or the URL of a storage provider.

    Raises :class:`~millstream.stores.StoreInputError` for another URL.
    """
    if "://" in place or place.startswith("file:"):
        return StoreFiles(open_provider(place), folder)
    return FolderFiles(Path(place).expanduser(), folder)
