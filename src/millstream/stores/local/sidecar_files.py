"""The sidecars of a local store on the disk: one file a content item, in a hidden tree beside the spaces."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from pathlib import Path

from millstream.stores.folders import OpenFolders, make_folder, open_folder
from millstream.stores.local.atomic_files import AtomicFile, AtomicFileGroup
from millstream.stores.local.sidecar import MAX_BYTES, Sidecar, damaged_sidecar, decode_sidecar, encode_sidecar

_USUAL = 16 * 1024
"""Almost all sidecars are smaller: one call reads them, and no large buffer is made for it."""

_NOT_A_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""The errors of a symbolic link, a folder or a socket that stands where a sidecar was."""


def sidecar_digest(content_id: str) -> bytes:
    """Names the sidecar: the SHA-256 of the content id, so that no id is too long or too odd for a file name."""
    return hashlib.sha256(content_id.encode("utf-8")).digest()


class SidecarFiles:
    """Reads and writes sidecars in the folder *names* below *root*; spaces are given as folder names. Thread-safe."""

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        self._root, self._names = root, names

    def read(self, space: str, content_id: str) -> Sidecar | None:
        """The sidecar, or None where there is none. Raises :class:`DamagedRecordError`, which names its file."""
        path, name = self._path(space, content_id)
        try:
            folder = open_folder(self._root, path)
        except FileNotFoundError:
            return None
        try:
            data = self._read(folder, path, name, content_id)
        finally:
            os.close(folder)
        return None if data is None else decode_sidecar(data, content_id, lambda: self._shown(path, name))

    def read_from(self, folders: OpenFolders, space: str, content_id: str) -> Sidecar | None:
        """As :meth:`read`, through *folders* of the store's root."""
        path, name = self._path(space, content_id)
        folder = folders.get(path)
        data = None if folder is None else self._read(folder, path, name, content_id)
        return None if data is None else decode_sidecar(data, content_id, lambda: self._shown(path, name))

    def _read(self, folder: int, path: tuple[str, ...], name: str, content_id: str) -> bytes | None:
        try:
            data = _read(folder, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _NOT_A_FILE:
                raise
            raise damaged_sidecar(content_id, self._shown(path, name), "the path is not a regular file") from error
        if len(data) > MAX_BYTES:
            fault = f"the sidecar is larger than {MAX_BYTES:,} bytes"
            raise damaged_sidecar(content_id, self._shown(path, name), fault)
        return data

    def _shown(self, path: tuple[str, ...], name: str) -> str:
        return str(Path(self._root, *path, name))

    def write_new(
        self, folders: OpenFolders, space: str, digest: bytes, data: bytes, group: AtomicFileGroup
    ) -> tuple[str, ...]:
        """Write the sidecar of an item that is not there yet in its place; returns the path of its folder.

        *digest* is the :func:`sidecar_digest` of its id.
        """
        path, name = self._place(space, digest.hex())
        group.write_in_place(folders.make(path), name, data)
        return path

    def write(self, space: str, sidecar: Sidecar, draft: AtomicFile) -> None:
        """Put *sidecar*, written as *draft*, in the place of the one before, durably."""
        path, name = self._path(space, sidecar.content_id)
        draft.file.write(encode_sidecar(sidecar))
        draft.finish()
        folder = make_folder(self._root, path)
        try:
            draft.place(folder, name)
        finally:
            os.close(folder)

    def remove(self, space: str, content_id: str) -> None:
        """Forget a content item that is gone. What a crash leaves behind here is harmless, so nothing is synced."""
        path, name = self._path(space, content_id)
        with contextlib.suppress(FileNotFoundError):
            folder = open_folder(self._root, path)
            try:
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)

    def has_space(self, space: str) -> bool:
        """Whether any sidecar of a space was written, and the space was not deleted since."""
        return Path(self._root, *self._names, space).is_dir()

    def remove_space(self, space: str) -> None:
        """Forget a space that is gone."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder = open_folder(self._root, self._names)  # through no link that was planted there
            try:
                shutil.rmtree(space, ignore_errors=True, dir_fd=folder)
            finally:
                os.close(folder)

    def _path(self, space: str, content_id: str) -> tuple[tuple[str, ...], str]:
        return self._place(space, sidecar_digest(content_id).hex())

    def _place(self, space: str, digest: str) -> tuple[tuple[str, ...], str]:
        return (*self._names, space, digest[0]), f"{digest}.json"


def _read(folder: int, name: str) -> bytes:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        data = os.read(handle, _USUAL)
        while len(data) >= _USUAL and len(data) <= MAX_BYTES and (more := os.read(handle, MAX_BYTES)):
            data += more
    finally:
        os.close(handle)
    return data
