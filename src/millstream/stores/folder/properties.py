"""Metadata of a file in a folder as properties, which are copied with it and from which it can be restored."""

from __future__ import annotations

import msgspec

from millstream.stores.protocol import DEFAULT_MIMETYPE, Entry, EntryKind, ItemInfo, StoreInputError

KIND = "kind"
"""The property that tells a link and an empty folder from a file, which has none."""

MTIME = "mtime"
"""The property with the time of the last change, in seconds since the epoch with nine decimals, as rclone writes it."""

_MIMETYPES = {EntryKind.SYMLINK: "inode/symlink", EntryKind.FOLDER: "inode/directory"}
_SECOND = 1_000_000_000

_MOST_DIGITS = 18
"""Of seconds that fit into the 64 bits of the system."""


def describe_entry(entry: Entry) -> ItemInfo:
    """The properties of an item without reading its bytes: it has no recorded checksum."""
    properties = {} if entry.version is None else {MTIME: format_time(int(entry.version))}
    if entry.kind in _MIMETYPES:
        properties[KIND] = entry.kind.value
    return ItemInfo(
        content_id=entry.content_id,
        size=entry.size,
        checksums=(),
        mimetype=_MIMETYPES.get(entry.kind, DEFAULT_MIMETYPE),
        properties=properties,
        modified=entry.modified,
    )


def with_recorded_kind(info: ItemInfo, mimetype: str) -> ItemInfo:
    """*info* with the kind of entry that belongs to *mimetype*, the one in our own records.

    So a provider that is not trusted turns no file into a symbolic link.
    """
    recorded = next((kind.value for kind, known in _MIMETYPES.items() if known == mimetype), None)
    stored = info.properties.get(KIND)
    if stored == recorded or (recorded is None and stored not in (EntryKind.SYMLINK, EntryKind.FOLDER)):
        return info
    properties = {name: value for name, value in info.properties.items() if name != KIND}
    if recorded is not None:
        properties[KIND] = recorded
    return msgspec.structs.replace(info, properties=properties)


def read_kind(info: ItemInfo) -> EntryKind:
    """The kind of entry as which the item *info* is restored. Raises :class:`StoreInputError`."""
    name = info.properties.get(KIND, EntryKind.FILE)
    if name not in (EntryKind.FILE, EntryKind.SYMLINK, EntryKind.FOLDER):
        raise StoreInputError(
            f"item {info.content_id!r} has the invalid property {KIND}={name[:100]!r}: set it to {EntryKind.FILE}, "
            f"{EntryKind.SYMLINK} or {EntryKind.FOLDER} (`millstream store props --set`)"
        )
    return EntryKind(name)


def format_time(nanoseconds: int) -> str:
    """*nanoseconds* since the epoch as a decimal number of seconds."""
    sign, amount = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{amount // _SECOND}.{amount % _SECOND:09d}"


def parse_time(text: str | None) -> int | None:
    """The nanoseconds since the epoch that *text* means; None where it is no decimal number, or too large."""
    sign, amount = (-1, text[1:]) if text and text.startswith("-") else (1, text or "")
    seconds, _, fraction = amount.partition(".")
    if not (seconds.isascii() and seconds.isdigit() and (fraction + "0").isascii() and (fraction + "0").isdigit()):
        return None
    if len(seconds) > _MOST_DIGITS:
        return None
    return sign * (int(seconds) * _SECOND + int(fraction[:9].ljust(9, "0")))
