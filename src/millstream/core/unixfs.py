"""UnixFS identifiers: the names that files have on IPFS (specifications "UnixFS" and "DAG-PB").

A file is cut into chunks of 262,144 bytes, the leaves of a balanced tree of at most 174 links a node; the identifier is
that of the root. In version 0 the leaves are nodes too; in version 1 they are the raw chunks, so that a file of one
chunk has the same identifier as its raw bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

CHUNK = 262_144
LINKS = 174

_FILE = b"\x08\x02"  # UnixFS field 1, the type: a file
_SHA256 = b"\x12\x20"  # the multihash prefix
_RAW, _DAG_PB = b"\x01\x55", b"\x01\x70"  # version 1 and the codec


class _Node(msgspec.Struct, frozen=True):
    """A part of the tree: its identifier in bytes, the bytes of the file under it, and the bytes of all its blocks."""

    cid: bytes
    size: int
    total: int


class UnixfsHasher:
    """The identifier of a file that comes in pieces. Holds one chunk, and a few bytes for each chunk before it."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._leaves: list[_Node] = []
        self._rest = bytearray()

    def update(self, data: bytes) -> None:
        """The file continues with *data*."""
        self._rest += data
        while len(self._rest) > CHUNK:  # a full chunk stays until it is known not to be the last
            self._leaves.append(self._leaf(bytes(self._rest[:CHUNK])))
            del self._rest[:CHUNK]

    def root(self) -> bytes:
        """The identifier of what came: a multihash in version 0; version, codec and multihash in version 1."""
        level = list(self._leaves)
        if self._rest or not level:
            level.append(self._leaf(bytes(self._rest)))
        while len(level) > 1:
            level = [self._parent(level[start : start + LINKS]) for start in range(0, len(level), LINKS)]
        return level[0].cid

    def _leaf(self, chunk: bytes) -> _Node:
        if self._version == 1:
            return _Node(_RAW + _multihash(chunk), len(chunk), len(chunk))
        content = _field(2, chunk) if chunk else b""
        return self._node(_FILE + content + _number(3, len(chunk)), (), len(chunk))

    def _parent(self, children: Sequence[_Node]) -> _Node:
        size = sum(child.size for child in children)
        sizes = b"".join(_number(4, child.size) for child in children)
        return self._node(_FILE + _number(3, size) + sizes, children, size)

    def _node(self, data: bytes, children: Sequence[_Node], size: int) -> _Node:
        links = [_field(1, child.cid) + _field(2, b"") + _number(3, child.total) for child in children]
        block = b"".join(_field(2, link) for link in links) + _field(1, data)  # the format wants the links first
        prefix = _DAG_PB if self._version == 1 else b""
        return _Node(prefix + _multihash(block), size, len(block) + sum(child.total for child in children))


def _multihash(data: bytes) -> bytes:
    return _SHA256 + hashlib.sha256(data).digest()


def _number(field: int, value: int) -> bytes:
    """A protobuf field with a number."""
    return bytes([field << 3]) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    """A protobuf field with bytes."""
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])
