"""The batcher's state as bytes: ``MSBT``, a version byte, the CRC-32 of the rest (little-endian), then MessagePack."""

from __future__ import annotations

import struct
import zlib

import msgspec

from millstream.batching.engine import EngineState
from millstream.batching.errors import ConfigError, SnapshotError
from millstream.batching.rulebook import Rulebook

_MAGIC = b"MSBT"
_VERSION = 2
_HEAD = struct.Struct("<4sBI")


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    rules: Rulebook
    state: EngineState


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)


def encode_snapshot(rules: Rulebook, state: EngineState) -> bytes:
    """*state* under *rules* as bytes. Raises :class:`SnapshotError` where a number does not fit 64 bits."""
    try:
        body = _encoder.encode(_Snapshot(rules, state))
    except OverflowError as error:
        raise SnapshotError("an id or a time of an open record does not fit a signed 64-bit integer") from error
    return _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(body)) + body


def decode_snapshot(data: bytes) -> tuple[Rulebook, EngineState]:
    """The rules and the state in *data*. Raises :class:`SnapshotError` that says what is wrong with it."""
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise SnapshotError("not a snapshot of a batcher: it does not begin with MSBT")
    _, version, checksum = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise SnapshotError(
            f"this snapshot has version {version}, this program reads version {_VERSION}: "
            "replay the log from the start of the oldest open batch instead"
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise SnapshotError("the snapshot is damaged (its checksum is wrong): use an older one and replay from there")
    try:
        snapshot = _decoder.decode(body)
    except (msgspec.DecodeError, ConfigError) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error
    return snapshot.rules, snapshot.state
