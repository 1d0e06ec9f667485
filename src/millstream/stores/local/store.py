"""The store in a local folder: every content item is a plain file that any tool can read and hash.

The layout, and what a crash can leave, are described in ``docs/formats/local-store.md``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from millstream.core.clock import SystemClock
from millstream.stores.bulk import Bulk
from millstream.stores.checks import check_acls, check_mimetype, check_promise, check_properties
from millstream.stores.file_location import FileLocation, find_file, make_file_location
from millstream.stores.folders import make_folder, make_root, open_folder, remove_empty_folders
from millstream.stores.hashing import copy_stream
from millstream.stores.listing import EntryColumns, OrderedListing, first_entries, whole_listing
from millstream.stores.local.atomic_files import AtomicFile
from millstream.stores.local.bulk import LocalBulk
from millstream.stores.local.disk_names import DiskNames, same_name
from millstream.stores.local.sidecar import FileDescription, Sidecar, describe_item, unknown_file
from millstream.stores.local.sidecar_files import SidecarFiles
from millstream.stores.local.space_files import SpaceFiles
from millstream.stores.local.writer import HIDDEN, SIDECARS, LocalWriter
from millstream.stores.names import check_content_id, check_space, order_key
from millstream.stores.os_errors import translated
from millstream.stores.path_encoding import decode_name, encode_name, item_paths
from millstream.stores.processes.bulk import ProcessBulk
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    DamagedRecordError,
    Entry,
    ItemInfo,
    SpaceAccess,
    SpaceNotEmptyError,
    StoreInputError,
    StoreUnavailableError,
    already_exists,
    item_not_found,
    space_not_found,
)
from millstream.stores.ranges import RangeReader, check_range

_TRIES = 100
"""How often an operation starts again because another process changed the same item or folder."""

_KEPT_BY_DISKS = frozenset({"lost+found", "system volume information", "$recycle.bin"})
"""Folders that file systems and operating systems make at the root of a disk: an empty disk has no spaces all the same.
"""


class LocalStore:
    """A storage provider in the folder *root*, shared safely by threads and processes of one host.

    With *create* the folder is made where it is missing; without it, a missing folder (a disk that is not mounted)
    is a :class:`StoreUnavailableError` and never an empty store. The methods are those of :class:`Store`; ``bulk`` does
    many items at once, in *processes* where there are some.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, create: bool = True, processes: BulkProcesses | None = None
    ) -> None:
        self._root = str(Path(root).absolute())
        self._url = Path(self._root).as_uri()
        self._listing = OrderedListing(self._root, SystemClock())
        self._descriptions = SidecarFiles(self._root, SIDECARS)
        self._spaces = SpaceFiles(self._root, (HIDDEN, "spaces"))
        self._writer = LocalWriter(self._root)
        own = LocalBulk(self._root, self._descriptions, self._writer)
        self.bulk: Bulk = own if processes is None else ProcessBulk(self._root, own, processes)
        if create:
            with translated(f"making the folder {self._root}"):
                make_root(Path(self._root))

    @property
    def url(self) -> str:
        return self._url

    def clear_drafts(self) -> None:
        """Remove files that processes were writing when they ended; never those of one that runs."""
        self._writer.clear_dead()

    def spaces(self) -> Sequence[str]:
        with self._reading(), os.scandir(self._root) as entries:
            names = [decode_name(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        spaces = [name.decode("utf-8") for name in sorted(name for name in names if name is not None)]
        return [space for space in spaces if not self._is_of_disk(space)]

    def has_space(self, space: str) -> bool:
        check_space(space)
        if self._is_of_disk(space):
            return False
        with self._reading():
            try:
                os.close(open_folder(self._root, (encode_name(space),)))
            except (FileNotFoundError, NotADirectoryError):
                return False
            names = self._writer.disk_names()
            return names is None or names.has((encode_name(space),))

    def _is_of_disk(self, space: str) -> bool:
        """Whether the folder of that name is not ours, but one that disks have."""
        return space.lower() in _KEPT_BY_DISKS and not self._descriptions.has_space(encode_name(space))

    def create_space(self, space: str) -> None:
        check_space(space)
        if self._is_of_disk(space):
            raise StoreInputError(
                f"cannot create space {space!r} in {self._url}: disks have folders of their own of this name: choose "
                "another name"
            )
        if Path(self._root).is_dir():
            with translated(f"looking for the space {space!r} in {self._url}"):
                is_taken = DiskNames(self._root).misleads((encode_name(space),))
            if is_taken:
                raise StoreInputError(
                    f"cannot create space {space!r} in {self._url}: the disk does not distinguish this name from that "
                    "of another folder: choose a name that differs in more than case"
                )
            if self.has_space(space):
                return
        with translated(f"making the space {space!r} in {self._url}"):
            make_root(Path(self._root))
            with self._writer.lock(space):
                if not self.has_space(space):  # no other process has just made it
                    self._spaces.remove(encode_name(space))  # what a crash may have left of one that was deleted
                    os.close(make_folder(self._root, (encode_name(space),)))

    def delete_space(self, space: str) -> None:
        self._require_space(space)
        with translated(f"deleting the space {space!r} in {self._url}"), self._writer.lock_everything():
            if self.entries(space, limit=1):
                raise SpaceNotEmptyError(f"space {space!r} in {self._url} still contains items: delete them first")
            _remove_folders(Path(self._root, encode_name(space)))
            self._descriptions.remove_space(encode_name(space))
            self._spaces.remove(encode_name(space))

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        with self._in_space(space):
            self._require_space(space)
            return self._spaces.read(encode_name(space))

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        kept = check_acls(acls)
        with self._in_space(space), self._writer.lock(space):
            self._require_space(space)
            self._spaces.write(encode_name(space), kept)

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        check_space(space)
        with self._in_space(space), whole_listing(self._root, (encode_name(space),)):
            items = self._listing.walk((encode_name(space),), order_key(prefix), order_key(after))
            return first_entries(self._root, items, limit)

    def columns(self, space: str, *, after: str = "", limit: int = 1000) -> EntryColumns:
        """:meth:`entries` in columns, at a fraction of the cost."""
        check_space(space)
        with self._in_space(space), whole_listing(self._root, (encode_name(space),)):
            return self._listing.first_columns((encode_name(space),), order_key(after), limit)

    def ids(self, space: str, *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """The ids of :meth:`entries`, without looking at the files: one may be missing."""
        check_space(space)
        with self._in_space(space), whole_listing(self._root, (encode_name(space),)):
            return self._listing.first_ids((encode_name(space),), order_key(after), limit)

    def info(self, space: str, content_id: str) -> ItemInfo:
        with self._in_space(space) as names, self._find(space, content_id, names) as place:
            status, description = self._describe(space, content_id, place)
        return describe_item(content_id, status, description)

    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> io.BufferedReader:
        check_range(start, length)
        with (
            self._in_space(space) as names,
            self._find(space, content_id, names) as place,
            self._there(space, content_id),
        ):
            file = place.open()
        return io.BufferedReader(RangeReader(file, start, length))

    def put(
        self,
        space: str,
        content_id: str,
        source: BinaryIO,
        *,
        mimetype: str = DEFAULT_MIMETYPE,
        properties: Mapping[str, str] | None = None,
        sha256: str | None = None,
        create_only: bool = False,
    ) -> ItemInfo:
        check_content_id(content_id)
        kept = check_properties(properties)
        check_mimetype(mimetype)
        self._require_space(space)
        with translated(f"putting {content_id!r} into {self._url}/{space}"), self._writer.draft() as draft:
            digests = copy_stream(source, draft.file)
            check_promise(content_id, digests.sha256, sha256)
            status = draft.finish()
            description = FileDescription(
                status.st_ino, status.st_mtime_ns, mimetype, digests.size, digests.sha256, kept
            )
            with self._writer.lock(content_id):
                self._replace(space, content_id, draft, description, create_only)
        return describe_item(content_id, status, description)

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        check_content_id(content_id)
        kept = check_properties(properties)
        with (
            self._in_space(space) as names,
            self._writer.lock(content_id),
            self._find(space, content_id, names) as place,
        ):
            status, description = self._describe(space, content_id, place)
            description = msgspec.structs.replace(description, properties=kept)
            self._write_sidecar(space, Sidecar(content_id, (description,)))
        return describe_item(content_id, status, description)

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        info = self.info(space, content_id)
        with self.open(space, content_id) as source:
            return self.put(
                to_space, to_content_id, source, mimetype=info.mimetype, properties=info.properties,
                sha256=info.checksum(),
            )  # fmt: skip

    def delete(self, space: str, content_id: str) -> None:
        check_content_id(content_id)
        with self._in_space(space) as names, self._writer.lock(content_id):
            with self._find(space, content_id, names) as place, self._there(space, content_id):
                place.remove()
            self._descriptions.remove(encode_name(space), content_id)
            remove_empty_folders(self._root, place.path[:-1], keep=1)

    def file_status(self, space: str, content_id: str) -> os.stat_result:
        """The status of the file that holds the bytes of a content item. Raises :class:`ItemNotFoundError`."""
        with self._in_space(space) as names, self._find(space, content_id, names) as place:
            assert place.status is not None
            return place.status

    def path_of(self, space: str, content_id: str) -> Path:
        """The file that holds the bytes of a content item. Raises :class:`ItemNotFoundError`."""
        with self._in_space(space) as names, self._find(space, content_id, names) as place:
            return Path(self._root, *place.path)

    def _replace(self, space: str, content_id: str, draft: AtomicFile, new: FileDescription, create_only: bool) -> None:
        """Describe the new file beside the old one, then put it in place: the moment at which both change."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError), self._target(space, content_id) as place:
                files: tuple[FileDescription, ...] = (new,)
                if place.status is not None:
                    if create_only:
                        raise already_exists(content_id, space, self._url)
                    files = (self._describe_replaced(space, content_id, place, place.status), new)
                self._write_sidecar(space, Sidecar(content_id, files))
                draft.place(place.folder, place.path[-1])
                if place.status is None:
                    self._require_listed(space, content_id, place)
                return
            self._require_space(space)  # else a folder was removed because it was empty: begin again
        raise StoreUnavailableError(
            f"another process keeps removing the folder for {content_id!r} in {self._url}/{space}: try again"
        )

    def _describe(self, space: str, content_id: str, place: FileLocation) -> tuple[os.stat_result, FileDescription]:
        """The file in place and its description, which belong together even while the item is being replaced."""
        for _ in range(_TRIES):
            before, damage, sidecar = place.read_status(), None, None
            try:
                sidecar = self._descriptions.read(encode_name(space), content_id)
            except (
                DamagedRecordError
            ) as error:  # or it is being written, for a file that comes after another was deleted
                damage = error
            after = place.read_status()
            if before is None or after is None:
                raise self._no_item(space, content_id)
            if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
                if damage is not None:
                    raise damage
                return before, (sidecar and sidecar.of(before)) or unknown_file(before)
        raise StoreUnavailableError(f"{content_id!r} in {self._url}/{space} keeps changing: try again")

    def _describe_replaced(
        self, space: str, content_id: str, place: FileLocation, status: os.stat_result
    ) -> FileDescription:
        """The metadata of a file that is about to be deleted; unknown if its sidecar is damaged.

        It has the number of the file in place, by which that is told from the new one.
        """
        try:
            seen, description = self._describe(space, content_id, place)
            return msgspec.structs.replace(description, inode=seen.st_ino)
        except DamagedRecordError:
            return unknown_file(status)

    def _write_sidecar(self, space: str, sidecar: Sidecar) -> None:
        with self._writer.draft() as draft:
            self._descriptions.write(encode_name(space), sidecar, draft)

    def _require_listed(self, space: str, content_id: str, place: FileLocation) -> None:
        """Remove a new file that the disk lists under another name, as another item."""
        names = self._writer.disk_names()
        if names is not None and not names.has(place.path):
            place.remove()
            self._descriptions.remove(encode_name(space), content_id)
            raise same_name(content_id, space, self._url)

    def _find(self, space: str, content_id: str, names: DiskNames | None) -> FileLocation:
        place = find_file(self._root, _own_paths(space, content_id, names))
        if place is None:
            raise self._no_item(space, content_id)
        return place

    def _target(self, space: str, content_id: str) -> FileLocation:
        paths = _own_paths(space, content_id, self._writer.disk_names())
        if not paths:
            raise same_name(content_id, space, self._url)
        return find_file(self._root, paths) or make_file_location(self._root, paths)

    def _require_space(self, space: str) -> None:
        if not self.has_space(space):
            raise space_not_found(space, self._url)

    def _no_item(self, space: str, content_id: str) -> Exception:
        self._require_space(space)
        return item_not_found(content_id, space, self._url)

    @contextlib.contextmanager
    def _there(self, space: str, content_id: str) -> Iterator[None]:
        """Make a file that vanished after it was found a missing item."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._no_item(space, content_id) from error

    @contextlib.contextmanager
    def _in_space(self, space: str) -> Iterator[DiskNames | None]:
        """Make errors of the operating system store errors, first of all that there is no such space.

        The names on the disk, where it does not distinguish all.
        """
        with translated(f"using {self._url}/{space}"):
            names = self._writer.disk_names()
            if names is not None and names.misleads((encode_name(space),)):
                raise space_not_found(space, self._url)
            try:
                yield names
            except (FileNotFoundError, NotADirectoryError):
                self._require_space(space)
                raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Make operating system errors store errors; a missing root is not an empty store."""
        with translated(f"reading {self._url}"):
            if not Path(self._root).is_dir():
                raise StoreUnavailableError(
                    f"the folder {self._root} does not exist: mount its disk, or for a new store, create the folder"
                )
            yield


def _own_paths(space: str, content_id: str, names: DiskNames | None) -> Sequence[tuple[str, ...]]:
    """The paths where the item may be, without those where the disk, whose *names* these are, has another one."""
    paths = item_paths(space, content_id)
    return paths if names is None else [path for path in paths if not names.misleads(path)]


def _remove_folders(space: Path) -> None:
    """Remove a space's folder and the empty ones in it."""
    try:
        for folder, _, _ in os.walk(space, topdown=False):
            _remove_folder(Path(folder))
    except RecursionError as error:
        raise SpaceNotEmptyError(
            f"cannot remove the space: {space} contains folders nested deeper than a store creates: move these folders "
            "out of the store"
        ) from error


def _remove_folder(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        left = min(path.name for path in folder.iterdir())
        raise SpaceNotEmptyError(
            f"cannot remove the space: {folder} contains {left!r}, which is not a content item: move {left!r} out of "
            "the store"
        ) from error
