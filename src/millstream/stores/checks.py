"""Checks of every provider before it stores an item."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.stores.protocol import ChecksumMismatchError, SpaceAccess, StoreInputError

MAX_PROPERTY_BYTES = 1024 * 1024
MAX_ACL_BYTES = 64 * 1024


def check_promise(content_id: str, sha256: str, promised: str | None) -> None:
    """Raise :class:`ChecksumMismatchError` where the bytes that came hash to another *sha256* than was *promised*."""
    if promised is not None and promised.lower() != sha256:
        raise ChecksumMismatchError(
            f"the content for {content_id!r} has SHA-256 {sha256}, not the expected {promised}; nothing "
            "was stored: put the content of an intact copy"
        )


def check_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of *properties*: UTF-8 text under names that are not empty, at most 1 MiB in all.

    Raises :class:`StoreInputError`.
    """
    copied = dict(properties or {})
    for name, value in copied.items():
        if not name or not (_is_text(name) and _is_text(value)):
            raise StoreInputError(
                f"invalid property {name[:100]!r}: name and value must be UTF-8 text, and the name must not be empty"
            )
    size = sum(len(name.encode("utf-8")) + len(value.encode("utf-8")) for name, value in copied.items())
    if size > MAX_PROPERTY_BYTES:
        raise StoreInputError(
            f"the properties have {size:,} bytes; the limit is {MAX_PROPERTY_BYTES:,} bytes: shorten or remove a few"
        )
    return copied


def check_acls(acls: Mapping[str, SpaceAccess]) -> dict[str, SpaceAccess]:
    """A copy of the access list *acls*: names of 1 to 255 bytes of UTF-8, at most 64 KiB in all.

    Raises :class:`StoreInputError`.
    """
    for name in acls:
        if not (name and _is_text(name) and len(name.encode("utf-8")) <= 255):
            raise StoreInputError(f"invalid name {name[:100]!r} in an access list: use 1 to 255 bytes of UTF-8 text")
    if sum(len(name.encode("utf-8")) for name in acls) > MAX_ACL_BYTES:
        raise StoreInputError(f"the access list is larger than {MAX_ACL_BYTES:,} bytes: name groups, not their members")
    for name, access in acls.items():
        if access not in list(SpaceAccess):
            allowed = " or ".join(SpaceAccess)
            raise StoreInputError(f"invalid access {str(access)[:40]!r} for {name!r} in an access list: use {allowed}")
    return {name: SpaceAccess(access) for name, access in acls.items()}


def check_mimetype(mimetype: str) -> None:
    """Raise :class:`StoreInputError` where *mimetype* is empty, too long, or not printable text."""
    if not (0 < len(mimetype) <= 255 and mimetype.isprintable()):
        raise StoreInputError(
            f"invalid mimetype {mimetype[:100]!r}: use 1 to 255 printable characters, such as text/plain"
        )


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False
