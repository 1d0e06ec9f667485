"""Copies of a folder's items, back into a folder: files, symbolic links and empty folders with their times."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from millstream.core.lock_files import open_to_lock
from millstream.core.renaming import rename_new
from millstream.stores.folder.path_names import decode_path
from millstream.stores.folder.properties import MTIME, parse_time, read_kind
from millstream.stores.folders import make_folder, make_root, open_folder
from millstream.stores.hashing import copy_stream, hash_stream, read_up_to
from millstream.stores.os_errors import translated
from millstream.stores.protocol import AlreadyExistsError, EntryKind, ItemInfo, StoreInputError

_LONGEST_TARGET = 4095
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)  # a file or a link is where a folder would be


def restore_item(target: Path, info: ItemInfo, source: BinaryIO, *, replace: bool = False) -> None:
    """Write the item *info*, whose bytes *source* gives, below the folder *target* as what it was, whole or not at all.

    What a killed process left of the same item is removed. Folders on the way are made. What stands there already is
    replaced only with *replace*; a folder never is. The path does not leave *target* through a symbolic link. Raises
    :class:`AlreadyExistsError`, :class:`StoreInputError` where no path has the item's id, and
    :class:`~millstream.stores.protocol.StoreError`.
    """
    above, name, kind = _path_of(info)
    mtime = parse_time(info.properties.get(MTIME))
    with translated(f"restoring {info.content_id!r} below {target}"):
        make_root(target)
        try:
            folder = make_folder(str(target), above)
        except OSError as error:
            raise _no_folder(info, target, error) from error
        try:
            if kind == EntryKind.FOLDER:
                _make_empty(folder, name, mtime)
            else:
                _place(folder, _New(name, kind, mtime), source, replace)
            os.fsync(folder)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{info.content_id!r} already exists in {target}") from error
        finally:
            os.close(folder)


def _no_folder(info: ItemInfo, target: Path, error: OSError) -> Exception:
    """The error where the folder of an item cannot be opened: *error*, unless another entry is there."""
    if error.errno not in _NO_FOLDER:
        return error
    return StoreInputError(
        f"cannot restore {info.content_id!r}: a file or a link stands in {target} where a folder is needed: "
        "move it away, or restore into another folder"
    )


def find_restored(target: Path, info: ItemInfo) -> str | None:
    """The existing entry below *target* at the path of the item *info*: the SHA-256 (hex) of its bytes.

    None where nothing stands there, an empty text where it is something else than the item was. A draft of an item that
    is in place is removed: a process that was killed left it. Raises :class:`StoreInputError` where no path has the
    item's id, or another entry is where its folder would be, and :class:`~millstream.stores.protocol.StoreError`.
    """
    above, name, kind = _path_of(info)
    with translated(f"reading {info.content_id!r} below {target}"):
        try:
            folder = open_folder(str(target), above)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _no_folder(info, target, error) from error
        try:
            found = _hash_in(folder, name, kind)
            if found is not None:
                _remove_unlocked(folder, _draft_of(name))
            return found
        finally:
            os.close(folder)


def _hash_in(folder: int, name: str, kind: EntryKind) -> str | None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not _IS_KIND[kind](mode):
            return ""
        if kind == EntryKind.FOLDER:
            return hashlib.sha256().hexdigest()
        if kind == EntryKind.SYMLINK:
            return hashlib.sha256(os.fsencode(os.readlink(name, dir_fd=folder))).hexdigest()
        return _hash_file(folder, name)
    except FileNotFoundError:
        return None


def _hash_file(folder: int, name: str) -> str:
    """The SHA-256 (hex) of the file *name*."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        return hash_stream(file).sha256


_IS_KIND = {EntryKind.FILE: stat.S_ISREG, EntryKind.SYMLINK: stat.S_ISLNK, EntryKind.FOLDER: stat.S_ISDIR}


def _path_of(info: ItemInfo) -> tuple[list[str], str, EntryKind]:
    """The folders above an item, its name, and what it was. Raises :class:`StoreInputError` where it has no path."""
    path = decode_path(info.content_id)
    kind = read_kind(info)
    if path is None or path.endswith(b"/") != (kind == EntryKind.FOLDER):
        raise StoreInputError(
            f"cannot restore a {kind} with id {info.content_id!r} into a folder: restore the item to a store instead"
        )
    *above, name = [os.fsdecode(one) for one in path.removesuffix(b"/").split(b"/")]
    return above, name, kind


def _make_empty(folder: int, name: str, mtime: int | None) -> None:
    """Make the empty folder *name* with its time, whole or not at all."""
    draft = _draft_of(name)
    handle = _new_draft(folder, draft, _make_folder)
    try:
        _set_time(folder, draft, mtime)
        os.fsync(handle)
        rename_new(draft, name, folder)
    except BaseException:
        _remove(folder, draft)
        raise
    finally:
        os.close(handle)


class _New(NamedTuple):
    name: str
    kind: EntryKind
    mtime: int | None


def _draft_of(name: str) -> str:
    return f".millstream-restore-{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}"


def _place(folder: int, new: _New, source: BinaryIO, replace: bool) -> None:
    draft = _draft_of(new.name)
    is_moved = False
    with contextlib.ExitStack() as held:
        try:
            if new.kind == EntryKind.SYMLINK:
                _remove(folder, draft)  # one that was left by a process that was killed
                os.symlink(_read_target(source, new.name), draft, dir_fd=folder)
                _set_time(folder, draft, new.mtime)
            else:
                file = held.enter_context(os.fdopen(_new_draft(folder, draft, _make_file), "wb"))
                _write(file, folder, draft, source, new.mtime)
            if replace:
                os.rename(draft, new.name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                rename_new(draft, new.name, folder)
            is_moved = True
        except IsADirectoryError as error:
            raise FileExistsError(errno.EEXIST, "a folder", new.name) from error
        finally:
            if not is_moved:  # the name may belong to another process's draft now
                _remove(folder, draft)


def _read_target(source: BinaryIO, name: str) -> str:
    target = read_up_to(source, _LONGEST_TARGET + 1)  # to the end, where *source* verifies its bytes
    if len(target) > _LONGEST_TARGET:
        hash_stream(source)
        raise StoreInputError(
            f"cannot restore the symbolic link {name!r}: its target is longer than {_LONGEST_TARGET:,} bytes, which no "
            "path is: restore the item to a store instead"
        )
    if b"\0" in target:
        raise StoreInputError(
            f"cannot restore the symbolic link {name!r}: its target has a NUL character, which no path has: restore "
            "the item to a store instead"
        )
    return os.fsdecode(target)


def _write(file: BinaryIO, folder: int, name: str, source: BinaryIO, mtime: int | None) -> None:
    copy_stream(source, file)
    file.flush()
    _set_time(folder, name, mtime)
    os.fsync(file.fileno())


def _make_file(folder: int, draft: str) -> int:
    return os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)


def _make_folder(folder: int, draft: str) -> int | None:
    os.mkdir(draft, dir_fd=folder)
    with contextlib.suppress(FileNotFoundError):  # somebody took it for one that was left, before it was opened
        return os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    return None


def _new_draft(folder: int, draft: str, make: Callable[[int, str], int | None]) -> int:
    """A descriptor of the new *draft*, locked by this process; one that a killed process left is removed first."""
    while True:
        try:
            handle = make(folder, draft)
        except FileExistsError:
            _remove_unlocked(folder, draft)
            continue
        if handle is None:
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_in_place(handle, folder, draft):  # no process removed it as abandoned before it was locked
            return handle
        os.close(handle)


def _remove_unlocked(folder: int, draft: str) -> None:
    """Remove *draft* when no process has it locked; waits for a process that restores the same item."""
    try:
        handle = open_to_lock(draft, flags=os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link, which has no lock
            raise
        _remove(folder, draft)
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_in_place(handle, folder, draft):
            _remove(folder, draft)
    finally:
        os.close(handle)


def _is_in_place(handle: int, folder: int, draft: str) -> bool:
    """Whether the open *handle* is what stands in *folder* under the name *draft*."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(draft, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove(folder: int, draft: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(draft, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(draft, dir_fd=folder)


def _set_time(folder: int, name: str, mtime: int | None) -> None:
    if mtime is not None:
        os.utime(name, ns=(mtime, mtime), dir_fd=folder, follow_symlinks=False)
