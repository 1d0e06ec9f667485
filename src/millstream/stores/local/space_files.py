"""The access list of a space of a local store, in a file beside the sidecars."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.stores.folders import make_folder, open_folder, open_plain
from millstream.stores.hashing import read_up_to
from millstream.stores.protocol import DamagedRecordError, SpaceAccess, damaged_acls

_MAX_BYTES = 16 * 1024 * 1024
"""A larger file was not written by a store."""


class _AccessList(msgspec.Struct):
    acls: dict[str, SpaceAccess]


class SpaceFiles:
    """The files ``<space>.json`` in the folder *names* below *root*; a space's name is spelled as its folder's is.

    Each has two lines: a JSON object with ``acls``, and the SHA-256 of that line.
    """

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        self._root, self._names = root, names

    def read(self, spelled: str) -> dict[str, SpaceAccess]:
        """The access list of a space; empty where none was ever set. Raises :class:`DamagedRecordError`."""
        path = self._path(spelled)
        try:
            with open_plain(path) as file:
                line, _, rest = read_up_to(file, _MAX_BYTES).partition(b"\n")
        except FileNotFoundError as error:
            if os.path.lexists(path):
                raise DamagedRecordError(f"{path} is not a regular file: move this entry away", str(path)) from error
            return {}
        if rest.strip() != hashlib.sha256(line).hexdigest().encode("ascii"):
            raise damaged_acls(f"{path} is damaged (its checksum does not match)", str(path))
        try:
            return msgspec.json.decode(line, type=prepared(_AccessList)).acls
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise damaged_acls(f"{path} contains no access list ({error})", str(path)) from error

    def write(self, spelled: str, acls: Mapping[str, SpaceAccess]) -> None:
        """Replace the access list of a space, durably."""
        os.close(make_folder(self._root, self._names))
        line = msgspec.json.encode({"acls": acls}, order="sorted")
        write_durably(self._path(spelled), b"%b\n%b\n" % (line, hashlib.sha256(line).hexdigest().encode("ascii")))

    def remove(self, spelled: str) -> None:
        """Forget the space."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder = open_folder(self._root, self._names)  # through no link that was planted there
            try:
                os.unlink(self._path(spelled).name, dir_fd=folder)
            finally:
                os.close(folder)

    def _path(self, spelled: str) -> Path:
        return Path(self._root, *self._names, f"{spelled}.json")
