"""A bucket that other programs wrote, as a provider that is read and never written to."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.clock import Clock, SystemClock
from millstream.core.retry import RetryPolicy
from millstream.stores.names import MAX_CONTENT_ID_BYTES, check_content_id, order_key
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    Entry,
    EntryKind,
    ItemInfo,
    ItemNotFoundError,
    StoreInputError,
    item_not_found,
)
from millstream.stores.ranges import check_range
from millstream.stores.s3.address import S3Address
from millstream.stores.s3.client import RETRIES, S3Calls
from millstream.stores.s3.listing import PAGE, list_objects
from millstream.stores.s3.metadata import lower_names
from millstream.stores.s3.objects import microseconds, provider_checksums, size_of
from millstream.stores.s3.reading import get_object, open_object
from millstream.stores.sources import ReadOnlySource

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes whose objects have to be restored before they can be read."""


class BucketStore(ReadOnlySource):
    """All objects below the prefix of *address*, whichever program wrote them, as the items of the space that it names.

    The content id is the rest of the key, whatever it looks like. Properties are the object's user metadata as they
    are; checksums are those of the whole object that the provider recorded. The methods are those of
    :class:`~millstream.stores.protocol.Store`; *retries* and *client* as for :class:`~millstream.stores.s3.S3Store`.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        retries: RetryPolicy = RETRIES,
        clock: Clock | None = None,
        client: S3Client | None = None,
    ) -> None:
        if address.space is None:
            raise StoreInputError(f"{address} has no space name: add space=NAME to the URL")
        super().__init__(address.space, address.exclude)
        self._address = address
        self._calls = S3Calls(address, retries, clock or SystemClock(), client)

    @property
    def url(self) -> str:
        return self._address.url

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        self.require_space(space)
        order_key(prefix)
        lines = list_objects(self._calls, self._address.prefix, prefix, order_key(after), min(PAGE, limit))
        entries = (self._entry(line) for line in lines) if limit > 0 else iter(())
        return list(itertools.islice((one for one in entries if not self.exclusion.covers(one.content_id)), limit))

    def info(self, space: str, content_id: str) -> ItemInfo:
        key = self._key(space, content_id)
        try:
            head = self._calls("head_object", Key=key, ChecksumMode="ENABLED")
        except ItemNotFoundError as error:
            raise self._missing(content_id) from error
        return _describe(content_id, head)

    def open(self, space: str, content_id: str, *, start: int = 0, length: int | None = None) -> io.BufferedReader:
        """As :meth:`Store.open`; raises :class:`UnreadableError` where the object is archived and not restored."""
        check_range(start, length)
        key = self._key(space, content_id)
        try:
            return open_object(self._calls, key, start, length)
        except ItemNotFoundError as error:
            raise self._missing(content_id) from error

    def open_described(self, space: str, content_id: str) -> tuple[io.BufferedReader, ItemInfo]:
        """The bytes of an item, and what the provider says of this version of it; its checksums are not among that."""
        key = self._key(space, content_id)
        try:
            file, response = get_object(self._calls, key)
        except ItemNotFoundError as error:
            raise self._missing(content_id) from error
        return file, _describe(content_id, response)

    def _key(self, space: str, content_id: str) -> str:
        self.require_space(space)
        if self.exclusion.covers(check_content_id(content_id)):
            raise item_not_found(content_id, space, self.url)
        return self._address.prefix + content_id

    def _entry(self, line: Mapping[str, Any]) -> Entry:
        content_id = line["Key"][len(self._address.prefix) :]
        kind = EntryKind.ARCHIVED if line.get("StorageClass") in _ARCHIVES else EntryKind.FILE
        if len(content_id.encode("utf-8")) > MAX_CONTENT_ID_BYTES:
            kind = EntryKind.NAME_TOO_LONG
        modified = microseconds(line.get("LastModified"))
        return Entry(content_id, int(line["Size"]), modified, f"{_etag(line)}@{modified}", kind)

    def _missing(self, content_id: str) -> ItemNotFoundError:
        """The error of an object that is not there; where the bucket is not there either, that is raised at once."""
        self._calls("list_objects_v2", Prefix=self._address.prefix, MaxKeys=1)
        return item_not_found(content_id, self.space, self.url)


def _describe(content_id: str, response: Mapping[str, Any]) -> ItemInfo:
    return ItemInfo(
        content_id=content_id,
        size=size_of(response, content_id),
        checksums=provider_checksums(response),
        mimetype=response.get("ContentType") or DEFAULT_MIMETYPE,
        properties=lower_names(response.get("Metadata", {})),
        modified=microseconds(response.get("LastModified")),
        etag=_etag(response),
    )


def _etag(response: Mapping[str, Any]) -> str:
    return str(response.get("ETag", "")).strip('"')
