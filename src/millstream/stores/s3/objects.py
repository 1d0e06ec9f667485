"""Converts S3's metadata of an object into ours."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.stores.protocol import DEFAULT_MIMETYPE, Checksum, ChecksumOrigin, ItemInfo, StoreError
from millstream.stores.s3.metadata import Metadata, unpack

_ALGORITHMS = {
    "ChecksumSHA256": "sha256",
    "ChecksumSHA1": "sha1",
    "ChecksumCRC64NVME": "crc64nvme",
    "ChecksumCRC32C": "crc32c",
    "ChecksumCRC32": "crc32",
}

_KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "StorageClass")
"""Attributes that an object loses when its metadata are replaced, unless they are repeated."""


class S3Object(msgspec.Struct, frozen=True):
    """An object as a HEAD request shows it. ``headers`` are those to say again when its metadata are replaced."""

    size: int
    etag: str
    modified: int | None
    mimetype: str
    metadata: Metadata
    checksums: tuple[Checksum, ...]
    headers: Mapping[str, str]

    def info(self, content_id: str) -> ItemInfo:
        """The same as what is known of the content item *content_id*. Its ETag is kept, and never taken for a sum."""
        return ItemInfo(
            content_id,
            self.size,
            self.checksums,
            self.mimetype,
            dict(self.metadata.properties),
            self.modified,
            self.etag.strip('"'),
        )


def read_head(response: Mapping[str, Any], key: str) -> S3Object:
    """The object *key* as the *response* to a HEAD request shows it. Raises :class:`StoreError`."""
    metadata = unpack(response.get("Metadata", {}))
    own = (Checksum("sha256", metadata.sha256, ChecksumOrigin.USER),) if metadata.sha256 else ()
    return S3Object(
        size=size_of(response, key),
        etag=str(response.get("ETag", "")),
        modified=microseconds(response.get("LastModified")),
        mimetype=response.get("ContentType") or DEFAULT_MIMETYPE,
        metadata=metadata,
        checksums=(*_provider_checksums(response), *own),
        headers={name: response[name] for name in _KEPT if response.get(name)},
    )


def size_of(response: Mapping[str, Any], key: str) -> int:
    """The bytes of the object *key*, in the *response* to a request for it."""
    size = response.get("ContentLength")
    if size is None:
        raise StoreError(
            f"the server states no length of {key!r}: it, or a proxy before it, changes the encoding of objects: "
            "switch that off"
        )
    return int(size)


def provider_checksums(response: Mapping[str, Any]) -> tuple[Checksum, ...]:
    """The checksums of the whole object that the provider recorded, in the *response* to a HEAD request."""
    return tuple(_provider_checksums(response))


def microseconds(moment: datetime | None) -> int | None:
    """*moment* in microseconds since the epoch."""
    return None if moment is None else round(moment.timestamp() * MICROSECONDS)


def _provider_checksums(response: Mapping[str, Any]) -> Iterator[Checksum]:
    """The checksums of the whole object that the provider recorded; one of a multipart object is a sum of sums."""
    kind = response.get("ChecksumType")
    in_parts = "-" in str(response.get("ETag", ""))
    if kind == "COMPOSITE" or (in_parts and kind != "FULL_OBJECT"):
        return
    for name, algorithm in _ALGORITHMS.items():
        try:
            value = base64.b64decode(response.get(name, ""), validate=True)
        except binascii.Error:
            continue
        if value:
            yield Checksum(algorithm, value.hex(), ChecksumOrigin.PROVIDER)
