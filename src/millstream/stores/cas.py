"""A folder of content-addressed files, seen as a store: each file is named by the hash of its bytes."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from millstream.core.cid import CidError, CidForm, CidHasher, digest_from_cid, form_of, is_cid
from millstream.core.clock import SystemClock
from millstream.core.durable import draft_name, remove_abandoned_drafts
from millstream.core.renaming import rename_new
from millstream.stores.checks import check_promise, check_properties
from millstream.stores.file_location import FileLocation, find_file
from millstream.stores.folders import make_root, open_folder
from millstream.stores.hashing import chunks, copy_stream
from millstream.stores.listing import OrderedListing, first_entries, whole_listing
from millstream.stores.names import check_content_id, check_space, order_key
from millstream.stores.os_errors import translated
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    Checksum,
    ChecksumMismatchError,
    ChecksumOrigin,
    Entry,
    ItemInfo,
    SpaceAccess,
    SpaceNotFoundError,
    StoreInputError,
    StoreRefusedError,
    StoreUnavailableError,
    already_exists,
    item_not_found,
)
from millstream.stores.ranges import RangeReader, check_range

CAS_SPACE = "cas"
"""The only space of such a store."""


class CasStore:
    """The folder *root* of files named by CID as a provider with the one space ``cas``.

    The name of a file tells its bytes, so nothing else is recorded: there are no properties and no mimetypes. Writing
    over a damaged file repairs it. *create* as for :class:`millstream.stores.LocalStore`. The methods are those of
    :class:`Store`.
    """

    def __init__(self, root: str | os.PathLike[str], *, create: bool = True) -> None:
        self._root = Path(root).absolute()
        self._url = "cas" + self._root.as_uri().removeprefix("file")
        self._listing = OrderedListing(str(self._root), SystemClock(), depth=0)
        if create:
            with translated(f"making the folder {self._root}"):
                make_root(self._root)

    @property
    def url(self) -> str:
        return self._url

    def clear_drafts(self, stopped: Callable[[], bool] = bool) -> None:
        """Remove files that killed processes were writing, after a day without a write. Reads all names there."""
        remove_abandoned_drafts(self._root, is_cid, SystemClock().now(), stopped=stopped)

    def spaces(self) -> Sequence[str]:
        self._require_root()
        return [CAS_SPACE]

    def has_space(self, space: str) -> bool:
        check_space(space)
        self._require_root()
        return space == CAS_SPACE

    def create_space(self, space: str) -> None:
        check_space(space)
        if space != CAS_SPACE:
            raise StoreRefusedError(f"{self.url} has only the space {CAS_SPACE!r}: create {space!r} in another store")
        with translated(f"making the folder {self._root}"):
            make_root(self._root)

    def delete_space(self, space: str) -> None:
        self._require_space(space)
        raise StoreRefusedError(f"cannot remove space {CAS_SPACE!r} from {self.url}: delete its items instead")

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        self._require_space(space)
        return {}

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:  # noqa: ARG002 - none is kept
        self._require_space(space)
        raise StoreRefusedError(
            f"{self.url} is content-addressed storage, which has no access control lists: use a store of another kind"
        )

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        self._require_space(space)
        with translated(f"listing {self.url}"), whole_listing(str(self._root), ()):
            items = self._listing.walk((), order_key(prefix), order_key(after))
            return first_entries(str(self._root), (item for item in items if is_cid("/".join(item[1]))), limit)

    def info(self, space: str, content_id: str) -> ItemInfo:
        with self._find(space, content_id) as place:
            return _info(content_id, place.status)

    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> io.BufferedReader:
        check_range(start, length)
        with self._find(space, content_id) as place, translated(f"opening {content_id} in {self.url}"):
            return io.BufferedReader(RangeReader(place.open(), start, length))

    def put(
        self,
        space: str,
        content_id: str,
        source: BinaryIO,
        *,
        mimetype: str = DEFAULT_MIMETYPE,  # noqa: ARG002 - accepted as every store does, not kept
        properties: Mapping[str, str] | None = None,
        sha256: str | None = None,
        create_only: bool = False,
    ) -> ItemInfo:
        """Store *source*, which must hash to *content_id*; a damaged file under that name is replaced.

        Raises :class:`ChecksumMismatchError` where it does not, :class:`StoreRefusedError` where *properties* are
        given.
        """
        self._require_space(space)
        self._refuse_properties(properties)
        form = _form(content_id)
        draft = self._root / draft_name(content_id)
        try:
            with translated(f"putting {content_id} into {self.url}"):
                with draft.open("xb") as file:
                    check_promise(content_id, _copy_named(source, file, content_id, form), sha256)
                    file.flush()
                    os.fsync(file.fileno())
                self._place_draft(draft, content_id, create_only)
        finally:
            draft.unlink(missing_ok=True)
        return self.info(space, content_id)

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        """The item's facts, where *properties* are empty. Raises :class:`StoreRefusedError` where they are not."""
        info = self.info(space, content_id)
        self._refuse_properties(properties)
        return info

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        with self.open(space, content_id) as source:
            return self.put(to_space, to_content_id, source)

    def delete(self, space: str, content_id: str) -> None:
        with self._find(space, content_id) as place, translated(f"deleting {content_id} in {self.url}"):
            place.remove()

    def path_of(self, space: str, content_id: str) -> Path:
        """The file that holds the bytes of a content item. Raises :class:`ItemNotFoundError`."""
        with self._find(space, content_id) as place:
            return self._root / place.path[-1]

    def _place_draft(self, draft: Path, content_id: str, create_only: bool) -> None:
        folder = open_folder(str(self._root), ())
        try:
            if create_only:
                rename_new(draft.name, content_id, folder)
            else:
                os.rename(draft.name, content_id, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except FileExistsError as error:
            raise already_exists(content_id, CAS_SPACE, self.url) from error
        finally:
            os.close(folder)

    def _find(self, space: str, content_id: str) -> FileLocation:
        self._require_space(space)
        check_content_id(content_id)
        with translated(f"looking for {content_id} in {self.url}"):
            place = find_file(str(self._root), [(content_id,)]) if is_cid(content_id) else None
        if place is None:
            raise item_not_found(content_id, space, self.url)
        return place

    def _require_space(self, space: str) -> None:
        if not self.has_space(space):
            raise SpaceNotFoundError(f"there is no space {space!r} in {self.url}; its only space is {CAS_SPACE!r}")

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnavailableError(f"the folder {self._root} does not exist: mount its disk, or create it")

    def _refuse_properties(self, properties: Mapping[str, str] | None) -> None:
        if check_properties(properties):
            raise StoreRefusedError(
                f"{self.url} is content-addressed and has no properties: put the item without properties"
            )


def _form(content_id: str) -> CidForm:
    try:
        return form_of(check_content_id(content_id))
    except CidError as error:
        raise StoreInputError(f"a content-addressed store accepts only CIDs as ids: {error}") from error


def _copy_named(source: BinaryIO, file: BinaryIO, content_id: str, form: CidForm) -> str:
    """Copy *source* into *file*; its SHA-256. Raises :class:`ChecksumMismatchError` where it has another name."""
    if form == CidForm.RAW:
        sha256 = copy_stream(source, file).sha256
        check_promise(content_id, sha256, digest_from_cid(content_id).hex())
        return sha256
    hasher, digest = CidHasher(form), hashlib.sha256()
    for chunk in chunks(source):
        file.write(chunk)
        hasher.update(chunk)
        digest.update(chunk)
    if hasher.cid() != content_id:
        raise ChecksumMismatchError(
            f"the content for {content_id!r} has the CID {hasher.cid()!r}; nothing was stored: put the "
            "content of an intact copy"
        )
    return digest.hexdigest()


def _info(content_id: str, status: os.stat_result | None) -> ItemInfo:
    """The facts of a file; the name of a raw one is its checksum, that of the others says nothing about its SHA-256."""
    assert status is not None
    raw = form_of(content_id) == CidForm.RAW
    checksums = (Checksum("sha256", digest_from_cid(content_id).hex(), ChecksumOrigin.PROVIDER),) if raw else ()
    return ItemInfo(content_id, status.st_size, checksums, DEFAULT_MIMETYPE, {}, status.st_mtime_ns // 1000)
