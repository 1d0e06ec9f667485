"""What the marker object of a space holds: nothing, or the access list of the space as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.stores.protocol import SpaceAccess, StoreError

MAX_MARKER_BYTES = 1024 * 1024
"""A longer one was not written by a store."""


class _Marker(msgspec.Struct, frozen=True):
    acls: dict[str, SpaceAccess] = {}


def read_marker(data: bytes, where: str) -> dict[str, SpaceAccess]:
    """The access list in *data*. Raises :class:`StoreError` that names *where* for anything else."""
    try:
        return msgspec.json.decode(data, type=_Marker).acls if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"the marker object of {where} contains no access list ({error}): set the access list again"
        ) from error


def write_marker(acls: Mapping[str, SpaceAccess]) -> bytes:
    """The bytes of the marker of a space with this access list."""
    return msgspec.json.encode(_Marker(dict(acls)), order="sorted") if acls else b""
