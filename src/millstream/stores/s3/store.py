"""The store in a bucket of S3."""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from millstream.core.clock import Clock, SystemClock
from millstream.core.retry import RetryPolicy
from millstream.stores.bulk import SMALL, FetchedItem, NewItem, Reading
from millstream.stores.checks import check_acls, check_mimetype, check_properties
from millstream.stores.names import order_key
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    AlreadyExistsError,
    Checksum,
    ChecksumOrigin,
    DamagedRecordError,
    Entry,
    ItemInfo,
    ItemNotFoundError,
    SpaceAccess,
    SpaceNotEmptyError,
    StoreError,
    StoreInputError,
    StoreUnavailableError,
    already_exists,
    item_not_found,
    space_not_found,
)
from millstream.stores.ranges import check_range
from millstream.stores.s3.address import S3Address
from millstream.stores.s3.bulk import S3Bulk, too_large
from millstream.stores.s3.client import RETRIES, S3Calls
from millstream.stores.s3.copying import Copier
from millstream.stores.s3.errors import BucketMissingError, ConditionFailedError, UploadGoneError
from millstream.stores.s3.keys import MAX_MARKER_BYTES, Keys, read_marker, write_marker
from millstream.stores.s3.limits import S3Limits
from millstream.stores.s3.listing import first_keys, list_entries, list_prefixes
from millstream.stores.s3.metadata import Metadata, pack
from millstream.stores.s3.objects import S3Object, read_head
from millstream.stores.s3.reading import get_object, open_object
from millstream.stores.s3.uploads import Upload, Uploader, checked_body

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CREATORS = 64
"""Locks over which creations are spread: Swift lets two in that begin at the same moment."""


class S3Store:
    """Spaces as prefixes of one bucket; see :mod:`millstream.stores.s3`. The methods are those of :class:`Store`.

    With *create* the bucket is made where it is missing. *retries* is how calls are repeated that the server did not
    answer; *client* is one of boto3 to be used in place of an own one, as several stores may; *new_id* names each put,
    so that one whose reply was lost is known again.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        create: bool = False,
        limits: S3Limits | None = None,
        retries: RetryPolicy = RETRIES,
        clock: Clock | None = None,
        client: S3Client | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._address, self._new_id = address, new_id
        self._calls = S3Calls(address, retries, clock or SystemClock(), client)
        self._keys = Keys(address.prefix)
        self._uploader = Uploader(self._calls, limits or S3Limits())
        self._copier = Copier(self._calls, limits or S3Limits())
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._creating = tuple(threading.Lock() for _ in range(_CREATORS))
        self.bulk = S3Bulk(self)
        if create:
            self._create_bucket()

    @property
    def url(self) -> str:
        return self._address.url

    def spaces(self) -> Sequence[str]:
        names = (self._keys.space(prefix) for prefix in list_prefixes(self._calls, self._keys.prefix))
        return sorted({name for name in names if name is not None}, key=order_key)

    def has_space(self, space: str) -> bool:
        marker = self._keys.marker(space)
        return self._head_or_none(marker) is not None or bool(first_keys(self._calls, marker, 1))

    def create_space(self, space: str) -> None:
        marker = self._keys.marker(space)
        if self._head_or_none(marker) is None:
            try:
                self._calls("put_object", Key=marker, IfNoneMatch="*", **checked_body(b""))
            except ConditionFailedError:
                return

    def delete_space(self, space: str) -> None:
        marker = self._keys.marker(space)
        with self._lock:
            self._known.discard(space)
        keys = first_keys(self._calls, marker, 2)
        if set(keys) - {marker}:
            raise SpaceNotEmptyError(f"space {space!r} in {self._address} still contains items: delete them first")
        if not keys and self._head_or_none(marker) is None:
            raise space_not_found(space, self.url)
        self._calls("delete_object", Key=marker)

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        try:
            with open_object(self._calls, self._keys.marker(space), 0, None) as marker:
                return read_marker(marker.read(MAX_MARKER_BYTES), self._shown(space))
        except ItemNotFoundError:
            self._require(space)
            return {}

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        body = write_marker(check_acls(acls))
        if not self.has_space(space):
            raise space_not_found(space, self.url)
        self._calls("put_object", Key=self._keys.marker(space), ContentType="application/json", **checked_body(body))

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        entries = list_entries(self._calls, self._keys.marker(space), prefix, after, limit)
        if not entries:
            self._require(space)
        return entries

    def info(self, space: str, content_id: str) -> ItemInfo:
        return self._head(space, content_id).info(content_id)

    def reading(self, space: str, content_id: str) -> Reading:
        """The metadata and the checksum of the bytes of a small item, in one request. Raises as :meth:`fetch`.

        Some servers return the bytes of a damaged object once only, so what was read must not be asked for again.
        """
        info, data = self.fetch(space, content_id, SMALL)
        return Reading(
            info.checksum(), hashlib.sha256(data).hexdigest(), len(data), info.modified, 1, info.mimetype,
            info.properties,
        )  # fmt: skip

    def fetch(self, space: str, content_id: str, limit: int) -> FetchedItem:
        """The metadata and the bytes of an item of at most *limit* bytes, in one request. Raises :class:`StoreError`,
        also if the item is larger."""
        key = self._keys.item(space, content_id)
        try:
            file, response = get_object(self._calls, key, checksums=True)
        except ItemNotFoundError as error:
            raise self._missing(space, content_id) from error
        with file:
            info = read_head(response, key).info(content_id)
            if info.size > limit:
                raise too_large(space, content_id, limit)
            data = file.read(limit + 1)  # the server may send more than it states
            if len(data) > limit:
                raise too_large(space, content_id, limit)
            return FetchedItem(info, data)

    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> io.BufferedReader:
        check_range(start, length)
        key = self._keys.item(space, content_id)
        try:
            return open_object(self._calls, key, start, length)
        except ItemNotFoundError as error:
            raise self._missing(space, content_id) from error

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
        """As :meth:`Store.put`; what S3 says of the object afterwards is compared with what was sent."""
        metadata = Metadata(check_properties(properties), put_id=self._new_id())
        pack(metadata)  # refuses what is too much before anything goes up
        _check_type(mimetype)
        key = self._keys.item(space, content_id)
        self._require(space)
        upload = Upload(content_id, key, mimetype, metadata, {"IfNoneMatch": "*"} if create_only else {})
        with self._creating[hash(key) % len(self._creating)] if create_only else contextlib.nullcontext():
            try:
                sent = self._uploader.put(upload, source, sha256)
            except (ConditionFailedError, UploadGoneError) as error:
                return self._settle(space, upload, error)
            return self._verified(space, upload, *sent)

    def put_new(self, space: str, item: NewItem) -> ItemInfo:
        """Put a small *item* under an id that is free, in one request where its ETag says that S3 has what was sent.

        Otherwise S3 is asked what it has, as with :meth:`put`.
        """
        metadata = Metadata(check_properties(item.properties), put_id=self._new_id())
        _check_type(item.mimetype)
        key = self._keys.item(space, item.content_id)
        self._require(space)
        upload = Upload(item.content_id, key, item.mimetype, metadata, {"IfNoneMatch": "*"})
        with self._creating[hash(key) % len(self._creating)]:
            try:
                sha256, etag = self._uploader.put_at_once(upload, item.data, item.sha256)
            except ConditionFailedError as error:
                return self._settle(space, upload, error)
            if etag == hashlib.md5(item.data, usedforsecurity=False).hexdigest():
                return _unseen(upload, sha256, len(item.data))
            return self._verified(space, upload, sha256, len(item.data))

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        kept = check_properties(properties)
        return self._copy(space, content_id, space, content_id, kept)

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        if (space, content_id) == (to_space, to_content_id):
            return self.info(space, content_id)
        return self._copy(space, content_id, to_space, to_content_id)

    def delete(self, space: str, content_id: str) -> None:
        key = self._keys.item(space, content_id)
        try:
            self._calls("head_object", Key=key)  # its properties may be damaged
        except ItemNotFoundError as error:
            raise self._missing(space, content_id) from error
        self._calls("delete_object", Key=key)

    def _copy(
        self,
        space: str,
        content_id: str,
        to_space: str,
        to_content_id: str,
        properties: Mapping[str, str] | None = None,
    ) -> ItemInfo:
        key, to_key = self._keys.item(space, content_id), self._keys.item(to_space, to_content_id)
        for _ in range(self._calls.policy.attempts):
            seen = self._head(space, content_id)
            self._require(to_space)
            kept = seen.metadata.properties if properties is None else properties
            metadata = Metadata(kept, seen.metadata.sha256, self._new_id())
            upload = Upload(to_content_id, to_key, seen.mimetype, metadata)
            try:
                self._copier.copy(key, seen, to_key, metadata)
            except (ConditionFailedError, ItemNotFoundError):
                continue  # replaced or removed meanwhile: look again
            except UploadGoneError as error:
                return self._settle(to_space, upload, error)
            return self._verified(to_space, upload, seen.metadata.sha256, seen.size)
        raise StoreUnavailableError(f"{content_id!r} in {self._shown(space)} keeps changing: try again later")

    def _verified(self, space: str, upload: Upload, sha256: str | None, size: int) -> ItemInfo:
        """S3's metadata of the *upload*. Raises :class:`StoreError` if it differs from what was sent."""
        seen = self._head_or_none(upload.key)
        if seen is None or seen.metadata.put_id not in (None, upload.metadata.put_id):
            if upload.condition:  # both were let in, and the other one came last (see docs/formats/s3-store.md)
                raise self._exists(space, upload)
            return _unseen(upload, sha256, size)  # another process deleted or replaced it after our write
        recorded = {sum_.value for sum_ in seen.checksums if sum_.algorithm == "sha256"}
        differs = sha256 is not None and not recorded <= {sha256}  # None: the copy of an object of another program
        if seen.size != size or seen.metadata.sha256 != sha256 or differs:
            raise StoreError(
                f"{upload.content_id!r} in {self._shown(space)} differs from what was sent: the upload had "
                f"{size:,} bytes with SHA-256 {sha256}, but S3 reports {seen.size:,} bytes with "
                f"SHA-256 {seen.metadata.sha256}, and the checksums {sorted(recorded)}: put the item again"
            )
        return seen.info(upload.content_id)

    def _settle(self, space: str, upload: Upload, error: StoreError) -> ItemInfo:
        """Whether a put that was refused had already been done, its reply lost."""
        seen = self._head_or_none(upload.key)
        if seen is not None and seen.metadata.put_id == upload.metadata.put_id:
            return seen.info(upload.content_id)
        if isinstance(error, ConditionFailedError):
            raise self._exists(space, upload) from error
        raise StoreUnavailableError(
            f"the upload of {upload.content_id!r} to {self._shown(space)} was aborted by another process: put the "
            "item again"
        ) from error

    def _head(self, space: str, content_id: str) -> S3Object:
        seen = self._head_or_none(self._keys.item(space, content_id))
        if seen is None:
            raise self._missing(space, content_id)
        return seen

    def _head_or_none(self, key: str) -> S3Object | None:
        try:
            return read_head(self._calls("head_object", Key=key, ChecksumMode="ENABLED"), key)
        except ItemNotFoundError:
            return None
        except DamagedRecordError as error:
            raise DamagedRecordError(f"{key!r} of {self._address}: {error}", key) from error

    def _require(self, space: str) -> None:
        """Raise :class:`SpaceNotFoundError` where there is no such space; one that was there is believed to be."""
        if space in self._known:
            return
        if not self.has_space(space):
            raise space_not_found(space, self.url)
        with self._lock:
            self._known.add(space)

    def _missing(self, space: str, content_id: str) -> StoreError:
        if not self.has_space(space):
            return space_not_found(space, self.url)
        return item_not_found(content_id, space, self.url)

    def _exists(self, space: str, upload: Upload) -> AlreadyExistsError:
        return already_exists(upload.content_id, space, self.url)

    def _shown(self, space: str) -> str:
        return f"{self._keys.marker(space)[:-1]} of {self._address}"

    def _create_bucket(self) -> None:
        try:
            self._calls("list_objects_v2", MaxKeys=1)
        except BucketMissingError:
            region = self._address.region
            elsewhere = {} if region in (None, "us-east-1") else {"LocationConstraint": region}
            self._calls("create_bucket", **({"CreateBucketConfiguration": elsewhere} if elsewhere else {}))


def _unseen(upload: Upload, sha256: str | None, size: int) -> ItemInfo:
    sums = (Checksum("sha256", sha256, ChecksumOrigin.USER),) if sha256 else ()
    return ItemInfo(upload.content_id, size, sums, upload.mimetype, dict(upload.metadata.properties))


def _check_type(mimetype: str) -> None:
    check_mimetype(mimetype)
    if not mimetype.isascii() or mimetype != mimetype.strip():
        raise StoreInputError(
            f"invalid mimetype {mimetype!r}: S3 requires ASCII without spaces at its ends, such as text/plain"
        )
