"""Targets of a restore: a folder, with the original files, or a space of another store."""

from __future__ import annotations

import enum
import errno
from pathlib import Path
from typing import BinaryIO, Protocol

from millstream.mill.duplication.duplication_decision import clean_properties
from millstream.stores.folder import find_restored, restore_item
from millstream.stores.hashing import hash_stream
from millstream.stores.os_errors import translated
from millstream.stores.protocol import (
    READ_REFUSALS,
    ChecksumMismatchError,
    DamagedRecordError,
    ItemInfo,
    ItemNotFoundError,
    Store,
    StoreError,
)

_UNREADABLE = (*READ_REFUSALS, ChecksumMismatchError, DamagedRecordError)
"""Errors of one item at a target: the others can be restored."""


def _is_unreadable(error: StoreError) -> bool:
    return isinstance(error, _UNREADABLE) or getattr(error.__cause__, "errno", None) == errno.EIO


class TargetState(enum.StrEnum):
    """The entry at the target under an item's id."""

    ABSENT = "absent"
    SAME = "same"
    DIFFERENT = "different"
    UNREADABLE = "unreadable"  # no right to it, archived or damaged: it may be the same


class RestoreTarget(Protocol):
    """A target to which items are written completely or not at all, durable when a call returns. Thread-safe."""

    def state(self, info: ItemInfo, sha256: str) -> TargetState:
        """Whether the item *info*, of which the bytes have *sha256* (hex), stands there already."""
        ...

    def write(self, info: ItemInfo, source: BinaryIO, sha256: str, *, replace: bool) -> None:
        """Write the item *info* with the bytes of *source*. What stands there is replaced only with *replace*.

        Raises :class:`~millstream.stores.AlreadyExistsError` and, for bytes that do not hash to *sha256*,
        :class:`~millstream.stores.ChecksumMismatchError`.
        """
        ...


class FolderTarget:
    """The folder *root*: files, symbolic links and empty folders below it, with their times."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def state(self, info: ItemInfo, sha256: str) -> TargetState:
        try:
            found = find_restored(self._root, info)
        except StoreError as error:
            if _is_unreadable(error):
                return TargetState.UNREADABLE
            raise
        if found is None:
            return TargetState.ABSENT
        return TargetState.SAME if found == sha256 else TargetState.DIFFERENT

    def write(self, info: ItemInfo, source: BinaryIO, sha256: str, *, replace: bool) -> None:  # noqa: ARG002
        restore_item(self._root, info, source, replace=replace)  # *source* itself ends with an error if it is damaged


class StoreTarget:
    """The space *space* of *store*: bytes, type and properties."""

    def __init__(self, store: Store, space: str) -> None:
        self._store, self._space = store, space

    def state(self, info: ItemInfo, sha256: str) -> TargetState:
        try:
            with translated(f"reading {info.content_id!r} in space {self._space!r} of the target"):
                found = self._store.info(self._space, info.content_id)
            is_same = self._is_same(found, info, sha256)
        except ItemNotFoundError:
            return TargetState.ABSENT
        except StoreError as error:
            if _is_unreadable(error):
                return TargetState.UNREADABLE
            raise
        return TargetState.SAME if is_same else TargetState.DIFFERENT

    def _is_same(self, found: ItemInfo, info: ItemInfo, sha256: str) -> bool:
        if (found.mimetype, clean_properties(found.properties)) != (info.mimetype, clean_properties(info.properties)):
            return False
        return found.checksum() in (None, sha256) and self._read(info) == sha256  # its bytes may have rotted since

    def _read(self, info: ItemInfo) -> str:
        where = f"space {self._space!r} of the target"
        with (
            translated(f"reading {info.content_id!r} in {where}"),
            self._store.open(self._space, info.content_id) as file,
        ):
            return hash_stream(file).sha256

    def write(self, info: ItemInfo, source: BinaryIO, sha256: str, *, replace: bool) -> None:
        self._store.put(
            self._space,
            info.content_id,
            source,
            mimetype=info.mimetype,
            properties=clean_properties(info.properties),
            sha256=sha256,
            create_only=not replace,
        )
