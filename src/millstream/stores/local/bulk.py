"""Many items of a local store in one go: folders are opened once, and all files and all renames are synced together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from millstream.stores.bulk import SMALL, NewItem, Reading
from millstream.stores.checks import check_mimetype, check_promise, check_properties
from millstream.stores.folders import OpenFolders
from millstream.stores.hashing import Digests
from millstream.stores.local.atomic_files import AtomicFileGroup, WrittenFile
from millstream.stores.local.disk_names import DiskNames, SpellingProbe, same_name, similar_apart
from millstream.stores.local.item_locks import half_of
from millstream.stores.local.sidecar import (
    FileDescription,
    Sidecar,
    describe_item,
    encode_sidecar,
    unknown_file,
)
from millstream.stores.local.sidecar_files import SidecarFiles, sidecar_digest
from millstream.stores.local.writer import HIDDEN, SIDECARS, LocalWriter
from millstream.stores.names import check_content_id, check_space
from millstream.stores.os_errors import store_error, translated
from millstream.stores.path_encoding import FLAT_FOLDER, encode_name, item_paths, plain_path
from millstream.stores.protocol import (
    AlreadyExistsError,
    DamagedRecordError,
    ItemInfo,
    StoreError,
    StoreUnavailableError,
    already_exists,
    item_not_found,
    space_not_found,
)

Answer = TypeVar("Answer")
P = ParamSpec("P")

HALVED = 200
"""So many items that are stored together are put in their places half by half."""

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_TOO_LARGE = f"more than {SMALL:,} bytes, the limit of a bulk read: read the item alone"


class _Written(NamedTuple):
    """An item whose bytes are written, and are not in place yet, and the bytes of its sidecar."""

    item: NewItem
    draft: WrittenFile
    digest: bytes
    sidecar: bytes
    status: os.stat_result
    description: FileDescription


class _Target(NamedTuple):
    folder: int
    name: str


class _FreePath(NamedTuple):
    """Where the file of a new item goes: the path of its folder, and its name there."""

    path: tuple[str, ...]
    name: str


class _StoreFolders(OpenFolders):
    """The open folders of a store; ``names`` where its disk does not distinguish the names of all items."""

    def __init__(self, root: str, names: DiskNames | None) -> None:
        super().__init__(root)
        self.names = names


class LocalBulk:
    """The :class:`~millstream.stores.bulk.Bulk` of the local store at *root*, with its sidecars and its writer."""

    takes_files = True

    def __init__(self, root: str, descriptions: SidecarFiles, writer: LocalWriter) -> None:
        self._root, self._descriptions, self._writer = root, descriptions, writer

    @classmethod
    def of_folder(cls, root: str) -> LocalBulk:
        """That of the store in the folder *root* (absolute), which may not be there."""
        return cls(root, SidecarFiles(root, SIDECARS), LocalWriter(root))

    @property
    def folder(self) -> str:
        """See :func:`millstream.stores.bulk.folder_of`."""
        return self._root

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        with self._folders(space) as folders:
            return [self._each(self._info, folders, space, one) for one in content_ids]

    def absent(self, space: str, content_ids: Sequence[str]) -> Sequence[str]:
        """See :func:`millstream.stores.bulk.find_absent`."""
        with self._folders(space) as folders:
            if folders.get((encode_name(space),)) is None:
                return []
            return [one for one in content_ids if self._is_absent(folders, space, one)]

    def _is_absent(self, folders: _StoreFolders, space: str, content_id: str) -> bool:
        try:
            for path, name in _places(folders, space, content_id):
                folder = folders.get(path)
                if folder is not None and _status(_Target(folder, name)) is not None:
                    return False
        except (OSError, StoreError):  # what it is, is said where the item is examined alone
            return False
        return True

    def read(self, space: str, content_ids: Sequence[str]) -> Sequence[bytes | StoreError]:
        with self._folders(space) as folders:
            return [self._each(self._read, folders, space, one) for one in content_ids]

    def hashes(self, space: str, content_ids: Sequence[str]) -> Sequence[Digests | StoreError]:
        with self._folders(space) as folders:
            return [self._each(self._hash, folders, space, one) for one in content_ids]

    def readings(
        self, space: str, content_ids: Sequence[str], expected: Sequence[str | None] = ()
    ) -> Sequence[int | Reading | StoreError]:
        with self._folders(space) as folders:
            return [
                self._each(self._reading, folders, space, one, sha256)
                for one, sha256 in zip_longest(content_ids, expected)
            ]

    def put(self, space: str, items: Sequence[NewItem]) -> Sequence[ItemInfo | StoreError]:
        found: dict[str, ItemInfo | StoreError] = {}
        with contextlib.ExitStack() as opened:
            folders = opened.enter_context(self._folders(space, is_write=True))
            drafts = opened.enter_context(self._writer.group(len(items)))
            sources = {
                root: opened.enter_context(_StoreFolders(root, SpellingProbe(root, HIDDEN).names()))
                for root in {item.folder for item in items}
                if root
            }
            written = []
            for item in items:
                one = self._each(self._write, folders, space, item, drafts, sources)
                if isinstance(one, StoreError):
                    found[item.content_id] = one
                else:
                    written.append(one)
            for locks, some in self._locked(written):
                with locks:
                    for part in _kept_apart(folders.names, some):
                        found |= self._place(folders, space, part, drafts)
        return [found[item.content_id] for item in items]

    def _locked(
        self, written: Sequence[_Written]
    ) -> Iterator[tuple[AbstractContextManager[object], Sequence[_Written]]]:
        """All of *written*, with the locks of those that come together.

        Many come in two halves, so that two processes that store many items at once need not wait for each other.
        """
        parts = [written] if len(written) < HALVED else [[o for o in written if half_of(o.digest) == n] for n in (0, 1)]
        while parts:
            for part in parts:
                locks = self._writer.try_lock_all(one.digest for one in part)
                if locks is not None:
                    break
            else:
                part = parts[0]
                locks = self._writer.lock_all(one.digest for one in part)
            parts = [one for one in parts if one is not part]
            yield locks, part

    def _info(self, folders: _StoreFolders, space: str, content_id: str) -> ItemInfo:
        """The file in place and its description, which belong together: a file that changes meanwhile is an error.

        One that was as the newest description has it needs no second look.
        """
        where, status = self._find(folders, space, content_id)
        sidecar = self._sidecar(folders, space, content_id, where, status)
        if sidecar is not None and sidecar.files and sidecar.files[-1].is_of(status):
            return describe_item(content_id, status, sidecar.files[-1])
        self._look_again(content_id, where, status)
        return describe_item(content_id, status, (sidecar and sidecar.of(status)) or unknown_file(status))

    def _reading(self, folders: _StoreFolders, space: str, content_id: str, expected: str | None) -> int | Reading:
        """The file in place, its bytes and its description, which belong together; or only its size (:meth:`readings`).

        A file that is replaced meanwhile needs no second look where what was read of it is as expected.
        """
        where, status, data = self._open(folders, space, content_id)
        sidecar = self._sidecar(folders, space, content_id, where, status)
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 == expected and sidecar is not None and status.st_nlink == 1:
            described = sidecar.of(status)
            if described is not None and described.sha256 == expected:
                return len(data)
        after = self._look_again(content_id, where, status)
        about = (sidecar and sidecar.of(status)) or unknown_file(status)
        return Reading(
            about.sha256, sha256, len(data), status.st_mtime_ns // 1000, after.st_nlink,
            about.mimetype, about.properties,
        )  # fmt: skip

    def _sidecar(
        self, folders: _StoreFolders, space: str, content_id: str, where: _Target, status: os.stat_result
    ) -> Sidecar | None:
        """The sidecar of the item whose file was found with *status*; one that is being written for another file is no
        damaged one."""
        try:
            return self._descriptions.read_from(folders, encode_name(space), content_id)
        except DamagedRecordError:
            self._look_again(content_id, where, status)
            raise

    @staticmethod
    def _look_again(content_id: str, where: _Target, status: os.stat_result) -> os.stat_result:
        """The status now; an error where it is not that of the same bytes."""
        after = _status(where)
        if after is None or (after.st_ino, after.st_mtime_ns) != (status.st_ino, status.st_mtime_ns):
            raise StoreUnavailableError(f"item {content_id!r} changed while it was read: read the item again")
        return after

    def _open(self, folders: _StoreFolders, space: str, content_id: str) -> tuple[_Target, os.stat_result, bytes]:
        """The location of a small item, the status of its file, and its bytes."""
        problem = "is missing: list the space again"
        for path, name in _places(folders, space, content_id):
            folder = folders.get(path)
            if folder is None:
                continue
            try:
                handle = os.open(name, _READING, dir_fd=folder)
            except FileNotFoundError:
                continue
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    problem = "is not a regular file: replace or delete it"
                elif status.st_size <= SMALL and (data := _read_whole(handle, status.st_size)) is not None:
                    return _Target(folder, name), status, data
                else:
                    problem = f"has {_TOO_LARGE}"
            finally:
                os.close(handle)
        raise StoreError(f"item {content_id!r} in the space {space!r} of {folders.root} {problem}")

    def _read(self, folders: _StoreFolders, space: str, content_id: str) -> bytes:
        plain = plain_path(space, content_id) if folders.names is None else None
        folder = None if plain is None else folders.get(plain[0])
        if plain is not None and folder is not None and (data := _small_file(folder, plain[1])) is not None:
            return data
        where, status = self._find(folders, space, content_id)
        data = None
        if status.st_size <= SMALL:
            handle = os.open(where.name, _READING, dir_fd=where.folder)
            try:
                data = _read_whole(handle, status.st_size)
            finally:
                os.close(handle)
        if data is None:
            raise StoreError(f"item {content_id!r} in the space {space!r} of {folders.root} has {_TOO_LARGE}")
        return data

    def _hash(self, folders: _StoreFolders, space: str, content_id: str) -> Digests:
        data = self._read(folders, space, content_id)
        return Digests(len(data), {"sha256": hashlib.sha256(data).hexdigest()})

    def _find(self, folders: _StoreFolders, space: str, content_id: str) -> tuple[_Target, os.stat_result]:
        for path, name in _places(folders, space, content_id):
            folder = folders.get(path)
            status = None if folder is None else _status(_Target(folder, name))
            if folder is not None and status is not None and stat.S_ISREG(status.st_mode):
                return _Target(folder, name), status
        if folders.get((encode_name(space),)) is None:
            raise space_not_found(space, str(folders.root))
        raise item_not_found(content_id, space, str(folders.root))

    def _write(
        self,
        _folders: _StoreFolders,
        space: str,
        item: NewItem,
        drafts: AtomicFileGroup,
        sources: Mapping[str, _StoreFolders],
    ) -> _Written:
        check_content_id(item.content_id)
        check_mimetype(item.mimetype)
        data = item.data if item.folder is None else self._read(sources[item.folder], space, item.content_id)
        kept, sha256 = check_properties(item.properties), hashlib.sha256(data).hexdigest()
        check_promise(item.content_id, sha256, item.sha256)
        draft, status = drafts.write_new(data)
        about = FileDescription(status.st_ino, status.st_mtime_ns, item.mimetype, len(data), sha256, kept)
        sidecar = encode_sidecar(Sidecar(item.content_id, (about,)))
        return _Written(item, draft, sidecar_digest(item.content_id), sidecar, status, about)

    def _place(
        self, folders: _StoreFolders, space: str, written: Sequence[_Written], drafts: AtomicFileGroup
    ) -> dict[str, ItemInfo | StoreError]:
        """Describe all files, durably as their bytes, then put them in place, durably; their locks are held."""
        found: dict[str, ItemInfo | StoreError] = {}
        described: list[tuple[_Written, _FreePath]] = []
        sidecars: set[tuple[str, ...]] = set()
        for one in written:
            content_id = one.item.content_id
            where = self._each(self._free, folders, space, content_id)
            if isinstance(where, StoreError):
                found[content_id] = where
                continue
            try:
                sidecars.add(self._descriptions.write_new(folders, encode_name(space), one.digest, one.sidecar, drafts))
            except OSError as error:
                found[content_id] = self._obstructed(folders, space, content_id, where, error)
                continue
            described.append((one, where))
        drafts.sync_all(map(folders.make, sidecars))
        placed: list[tuple[_Written, _FreePath]] = []
        for one, where in described:
            try:
                one.draft.move(folders.make(where.path, existing=1), where.name)
            except OSError as error:  # such as a folder that another item of the group has made in its place
                found[one.item.content_id] = self._obstructed(folders, space, one.item.content_id, where, error)
                continue
            found[one.item.content_id] = describe_item(one.item.content_id, one.status, one.description)
            placed.append((one, where))
        paths = dict.fromkeys(where.path for _, where in placed)
        drafts.sync_folders(len(paths), (folders.make(path, existing=1) for path in paths))
        if folders.names is not None:
            found |= self._refuse_unlisted(folders, folders.names, space, placed)
        return found

    def _refuse_unlisted(
        self, folders: _StoreFolders, names: DiskNames, space: str, described: Sequence[tuple[_Written, _FreePath]]
    ) -> dict[str, StoreError]:
        """Remove the new files that the disk lists under other names, as other items; their errors."""
        names.clear()
        refused: dict[str, StoreError] = {}
        for one, where in described:
            if not names.has((*where.path, where.name)):
                folder = folders.get(where.path)
                if folder is not None:  # None would be the working directory of the process
                    os.unlink(where.name, dir_fd=folder)
                self._descriptions.remove(encode_name(space), one.item.content_id)
                refused[one.item.content_id] = same_name(one.item.content_id, space, str(self._root))
        return refused

    def _free(self, folders: _StoreFolders, space: str, content_id: str) -> _FreePath:
        """The location for the file of a new item, in a folder that is there."""
        plain = plain_path(space, content_id) if folders.names is None else None
        if plain is not None and (folder := folders.get(plain[0])) is not None:
            is_free = _status(_Target(folder, plain[1])) is None
            if is_free and folders.get((encode_name(space), FLAT_FOLDER)) is None:
                return _FreePath(*plain)  # as nearly always
        free: list[tuple[tuple[str, ...], str]] = []
        paths = list(_places(folders, space, content_id))
        if not paths:
            raise same_name(content_id, space, str(self._root))
        for path, name in paths:
            folder = folders.get(path)
            status = None if folder is None else _status(_Target(folder, name))
            if status is not None and stat.S_ISREG(status.st_mode):
                raise self._taken(space, content_id)
            if status is None:
                free.append((path, name))
        for path, name in free:
            with contextlib.suppress(NotADirectoryError):
                folders.make(path, existing=1)
                if folders.names is not None:
                    folders.names.add(path)
                return _FreePath(path, name)
        blocked = ", ".join("/".join((*path, name)) for path, name in paths)
        raise StoreError(
            f"cannot write {content_id!r} to the space {space!r} of {self._root}: files that are not content items "
            f"block its paths ({blocked}); move these files away"
        )

    def _obstructed(
        self, folders: _StoreFolders, space: str, content_id: str, where: _FreePath, error: OSError
    ) -> StoreError:
        """Forget the description of an item that could not be put in its place; why it could not."""
        with contextlib.suppress(OSError):  # without an item it says nothing
            self._descriptions.remove(encode_name(space), content_id)
        folder = folders.get(where.path)
        status = None if folder is None else _status(_Target(folder, where.name))
        if isinstance(error, FileExistsError) and status is not None and stat.S_ISREG(status.st_mode):
            return self._taken(space, content_id)  # by hand, just now: who writes through a store holds the lock
        return store_error(self._doing(space), error)

    def _taken(self, space: str, content_id: str) -> AlreadyExistsError:
        return already_exists(content_id, space, str(self._root))

    @contextlib.contextmanager
    def _folders(self, space: str, *, is_write: bool = False) -> Iterator[_StoreFolders]:
        check_space(space)
        if not Path(self._root).is_dir():
            raise StoreUnavailableError(f"the folder {self._root} does not exist: mount its disk")
        with translated(self._doing(space)):
            if is_write:
                self._writer.start()
            names = self._writer.disk_names()
            if names is not None and names.misleads((encode_name(space),)):
                raise space_not_found(space, str(self._root))
            with _StoreFolders(self._root, names) as folders:
                yield folders

    def _each(
        self,
        act: Callable[Concatenate[_StoreFolders, str, P], Answer],
        folders: _StoreFolders,
        space: str,
        *more: P.args,
        **named: P.kwargs,
    ) -> Answer | StoreError:
        """The result of *act* for one item, or its error."""
        try:
            return act(folders, space, *more, **named)
        except StoreError as error:
            return error
        except OSError as error:
            return store_error(self._doing(space), error)

    def _doing(self, space: str) -> str:
        return f"using the space {space!r} of {self._root}"


def _kept_apart(names: DiskNames | None, written: Sequence[_Written]) -> Iterable[Sequence[_Written]]:
    """*written* in parts of items that do not take each other's names on the disk."""
    if names is None:
        return [written]
    names.clear()  # listed before the locks were held
    return similar_apart((one.item.content_id, one) for one in written)


def _places(folders: _StoreFolders, space: str, content_id: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """As :func:`_all_places`, without those where the disk has another item."""
    for path, name in _all_places(space, content_id):
        if folders.names is None or not folders.names.misleads((*path, name)):
            yield path, name


def _all_places(space: str, content_id: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The folders, and the names in them, in which an item may be: the one where it nearly always is comes first."""
    plain = plain_path(space, content_id)
    if plain is not None:
        yield plain
        yield (encode_name(space), FLAT_FOLDER), content_id.replace("/", "%2F")
    else:
        for path in item_paths(space, content_id):
            yield path[:-1], path[-1]


def _small_file(folder: int, name: str) -> bytes | None:
    """The bytes of a small plain file; None where there is none, or it has to be looked at closely."""
    try:
        handle = os.open(name, _READING, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_size <= SMALL:
            return _read_whole(handle, status.st_size)
        return None
    finally:
        os.close(handle)


def _read_whole(handle: int, size: int) -> bytes | None:
    """All bytes of a file that had *size* bytes; None where it grew and is not small any more."""
    data = os.read(handle, size + 1)
    while size < len(data) <= SMALL and (more := os.read(handle, SMALL + 1 - len(data))):
        data += more
    return data if len(data) <= SMALL else None


def _status(where: _Target) -> os.stat_result | None:
    try:
        return os.stat(where.name, dir_fd=where.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
