"""Hashes taken while bytes pass by, so that nothing is read twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import msgspec

CHUNK = 1024 * 1024
"""Bytes read at a time: large enough that hashing, not calling, is what takes the time."""


class Digests(msgspec.Struct, frozen=True, gc=False):
    """The result of a read: the ``size`` in bytes and checksums in lower-case hex, by algorithm."""

    size: int
    sums: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return self.sums["sha256"]


def chunks(source: BinaryIO) -> Iterator[bytes]:
    """The bytes of *source* to its end, at most 1 MiB at a time."""
    while chunk := source.read(CHUNK):
        yield chunk


def read_up_to(source: BinaryIO, size: int) -> bytes:
    """*size* bytes of *source*, fewer only at its end."""
    pieces, left = [], size
    while left and (piece := source.read(min(left, CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def hash_stream(source: BinaryIO, algorithms: Iterable[str] = ("sha256",)) -> Digests:
    """The checksums of all bytes that *source* still gives (any algorithm of :mod:`hashlib`)."""
    return copy_stream(source, None, algorithms)


def copy_stream(source: BinaryIO, sink: BinaryIO | None, algorithms: Iterable[str] = ("sha256",)) -> Digests:
    """Copy all bytes that *source* still gives into *sink*, and hash them on the way."""
    hashers = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
    size = 0
    for chunk in chunks(source):
        size += len(chunk)
        for hasher in hashers.values():
            hasher.update(chunk)
        if sink is not None:
            sink.write(chunk)
    return Digests(size, {name: hasher.hexdigest() for name, hasher in hashers.items()})
