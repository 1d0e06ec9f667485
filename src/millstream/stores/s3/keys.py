"""The keys of the items of a store in a bucket, and the marker of a space: empty, or its access list."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.core.decoding import prepared
from millstream.stores.names import check_content_id, check_space
from millstream.stores.protocol import ContentIdTooLongError, SpaceAccess, StoreInputError, damaged_acls
from millstream.stores.s3.limits import MAX_KEY_BYTES

MAX_MARKER_BYTES = 1024 * 1024
"""A longer one was not written by a store."""


class Keys:
    """Keys below *prefix* (empty, or ending with "/"): ``PREFIX/SPACE/CONTENT ID``.

    The key that ends after the space is the space's *marker*: it is there for as long as the space is, even empty.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def marker(self, space: str) -> str:
        """Also what all keys of the space begin with."""
        return f"{self.prefix}{check_space(space)}/"

    def item(self, space: str, content_id: str) -> str:
        """Raises :class:`ContentIdTooLongError` where the key would be longer than S3 keeps."""
        key = self.marker(space) + check_content_id(content_id)
        length = len(key.encode("utf-8"))
        if length > MAX_KEY_BYTES:
            raise ContentIdTooLongError(
                f"content id {content_id[:100]!r} makes a key of {length:,} bytes, including the prefix "
                f"and the space ({self.marker(space)!r}), but the limit of S3 is {MAX_KEY_BYTES:,} bytes: "
                "shorten the id"
            )
        return key

    def space(self, common_prefix: str) -> str | None:
        """The space whose marker is *common_prefix*; None where it is none of ours."""
        name = common_prefix[len(self.prefix) : -1]
        try:
            return check_space(name)
        except StoreInputError:
            return None


class _Marker(msgspec.Struct, frozen=True):
    acls: dict[str, SpaceAccess] = {}


def read_marker(data: bytes, where: str) -> dict[str, SpaceAccess]:
    """The access list in *data*. Raises :class:`DamagedRecordError` that names *where* for others."""
    try:
        return msgspec.json.decode(data, type=prepared(_Marker)).acls if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged_acls(f"the marker object of {where} contains no access list ({error})", where) from error


def write_marker(acls: Mapping[str, SpaceAccess]) -> bytes:
    """The bytes of the marker of a space with this access list."""
    return msgspec.json.encode(_Marker(dict(acls)), order="sorted") if acls else b""
