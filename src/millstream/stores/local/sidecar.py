"""Sidecars: what a local folder store knows of a content item beyond its bytes.

A sidecar is one JSON object and, on a second line, its SHA-256. It describes one file, or, while a file is being
replaced, the old and the new one: whichever file is in place picks its own description. So the rename that puts the
file in place is the one moment at which content and description change, together.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Annotated

import msgspec

from millstream.core.decoding import prepared
from millstream.stores.protocol import DEFAULT_MIMETYPE, Checksum, ChecksumOrigin, DamagedRecordError, ItemInfo

MAX_BYTES = 16 * 1024 * 1024
"""A sidecar larger than this was not written by a store."""


class FileDescription(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One file: what it was when it was written (size in bytes, time in nanoseconds), and what belongs to it.

    ``inode`` and ``mtime_ns`` tell which file is meant; after a file was copied to another disk by a tool that keeps
    times, the time alone still does.
    """

    inode: int
    mtime_ns: int
    mimetype: str
    size: int | None = None
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    properties: dict[str, str] = {}

    def is_of(self, status: os.stat_result) -> bool:
        """Whether it plainly describes the file whose status is *status*, as it was written."""
        return (self.inode, self.mtime_ns, self.size) == (status.st_ino, status.st_mtime_ns, status.st_size)


class Sidecar(msgspec.Struct, frozen=True, gc=False):
    """The descriptions of the content item ``content_id``, the newest last: one, or two around a replacement."""

    content_id: str
    files: tuple[FileDescription, ...]

    def of(self, status: os.stat_result) -> FileDescription | None:
        """The description of the file whose status is *status*.

        The inode number alone counts late: a copy of the file may have that of the file that was replaced. The newest
        description holds for any other file: bytes that were changed behind the store's back must not lose the checksum
        that gives them away.
        """
        newest_first = self.files[::-1]
        for file in newest_first:
            if file.is_of(status):
                return file
        for file in newest_first:
            if (file.mtime_ns, file.size) == (status.st_mtime_ns, status.st_size):
                return file
        for file in newest_first:
            if file.inode == status.st_ino:
                return file
        return self.files[-1] if self.files else None


def unknown_file(status: os.stat_result) -> FileDescription:
    """A file that another program put into the folder: it has no recorded checksum."""
    return FileDescription(status.st_ino, status.st_mtime_ns, DEFAULT_MIMETYPE)


def describe_item(content_id: str, status: os.stat_result, description: FileDescription) -> ItemInfo:
    """The metadata of the item whose file has *status* and this description."""
    checksums = () if description.sha256 is None else (Checksum("sha256", description.sha256, ChecksumOrigin.PROVIDER),)
    return ItemInfo(
        content_id=content_id,
        size=status.st_size,
        checksums=checksums,
        mimetype=description.mimetype,
        properties=description.properties,
        modified=status.st_mtime_ns // 1000,
    )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(prepared(Sidecar))


def encode_sidecar(sidecar: Sidecar) -> bytes:
    """The bytes of the sidecar file."""
    line = _encoder.encode(sidecar)
    return b"%b\n%b\n" % (line, hashlib.sha256(line).hexdigest().encode("ascii"))


def decode_sidecar(data: bytes, content_id: str, shown: Callable[[], str]) -> Sidecar:
    """The sidecar in *data*, read from the file that *shown* names.

    Raises :class:`DamagedRecordError` where it is not a whole one of *content_id*.
    """
    line, _, rest = data.partition(b"\n")
    if rest != hashlib.sha256(line).hexdigest().encode("ascii") + b"\n":
        raise damaged_sidecar(content_id, shown(), "the checksum in the sidecar does not match")
    try:
        sidecar = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged_sidecar(content_id, shown(), str(error)) from error
    if sidecar.content_id != content_id:
        raise damaged_sidecar(content_id, shown(), f"the sidecar belongs to {sidecar.content_id!r}")
    return sidecar


def damaged_sidecar(content_id: str, path: str, reason: str) -> DamagedRecordError:
    """The error of a sidecar that cannot be used, for *reason*."""
    return DamagedRecordError(
        f"the sidecar {path} of {content_id!r} is damaged ({reason}): put the item again from a good copy", path
    )
