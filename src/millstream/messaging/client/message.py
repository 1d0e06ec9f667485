"""Messages as clients have them: what is sent, what came of it, and what is received."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.core import timestamps
from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import BadRequestError
from millstream.messaging.protocol import v2

_TOPIC = re.compile(r"[%a-zA-Z0-9_-]{1,127}")
MAX_UNPACKED = 64 << 20
_GZIP = b"\x1f\x8b"
_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}


@functools.lru_cache(1024)
def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to be sent.

    ``tag`` and ``keys`` are for finding it again, ``properties`` the user's own. With ``message_group`` it is one of an
    ordered group; with ``deliver_at`` (a :class:`datetime` that knows its zone) it is delayed until then. It is either
    of those or neither. Raises :class:`BadRequestError` for what no server takes.
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    message_group: str = ""
    deliver_at: datetime | None = None

    def __post_init__(self) -> None:
        if not _is_topic(self.topic):
            raise BadRequestError(
                f"invalid topic name {self.topic[:80]!r}: use 1 to 127 letters, digits, '_', '%' and '-'"
            )
        if not self.body:
            raise BadRequestError("the message has no body: add a body of at least one byte")
        if self.tag and (not self.tag.strip() or "|" in self.tag):
            raise BadRequestError(f"invalid tag {self.tag[:80]!r}: it must not be blank or contain '|'")
        if self.keys and not all(key.strip() for key in self.keys):
            raise BadRequestError("a key is blank: give it a character other than a space, or omit it")
        for name, value in self.properties.items() if self.properties else ():
            if not name.strip() or not value.strip():
                raise BadRequestError(f"property {name[:80]!r} has a blank name or value: give it both, or omit it")
        if self.message_group and self.deliver_at is not None:
            raise BadRequestError("a message cannot have both a message group and a delivery time: omit one")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise BadRequestError("deliver_at has no time zone: write datetime.now(UTC) + timedelta(minutes=5)")

    @property
    def kind(self) -> int:
        """The protocol's ``MessageType`` of it, where it is in no transaction."""
        if self.message_group:
            return v2.FIFO
        return v2.NORMAL if self.deliver_at is None else v2.DELAY


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The receipt of a stored message. ``recall_handle`` is for delayed ones, ``transaction_id`` for halves."""

    message_id: str
    offset: int
    queue_id: int
    endpoints: Endpoints
    transaction_id: str = ""
    recall_handle: str = ""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message that was received. ``attempt`` counts its deliveries; ``is_corrupted`` where its digest is wrong,
    or its body cannot be decompressed."""

    topic: str
    body: bytes
    message_id: str
    receipt_handle: str
    attempt: int
    tag: str
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_group: str
    born_at: datetime
    born_host: str
    stored_at: datetime
    deliver_at: datetime | None
    queue_id: int
    offset: int
    endpoints: Endpoints
    is_corrupted: bool


class MessageStamp(msgspec.Struct, kw_only=True, frozen=True):
    """The data that a producer adds to a message: its id, its type (the protocol's), its time (microseconds) and its
    host."""

    message_id: str
    kind: int
    namespace: str
    born: int
    host: str


def to_wire(message: Message, stamp: MessageStamp) -> v2.Message:
    """*message* as it is sent."""
    wire = v2.Message(body=message.body, user_properties=dict(message.properties))
    wire.topic.name, wire.topic.resource_namespace = message.topic, stamp.namespace
    system = wire.system_properties
    system.message_id, system.born_host = stamp.message_id, stamp.host
    type_: Any = stamp.kind
    system.message_type, system.body_encoding = type_, v2.IDENTITY
    system.born_timestamp.FromMicroseconds(stamp.born)
    if message.tag:
        system.tag = message.tag
    system.keys.extend(message.keys)
    if message.message_group:
        system.message_group = message.message_group
    if message.deliver_at is not None:
        system.delivery_timestamp.FromDatetime(message.deliver_at.astimezone(UTC).replace(tzinfo=None))
    return wire


def from_wire(wire: v2.Message, endpoints: Endpoints) -> Received:
    """A message as it came from *endpoints*."""
    system = wire.system_properties
    body, sound = _open_body(wire)
    return Received(
        topic=wire.topic.name,
        body=body,
        message_id=system.message_id,
        receipt_handle=system.receipt_handle,
        attempt=system.delivery_attempt,
        tag=system.tag,
        keys=tuple(system.keys),
        properties=dict(wire.user_properties),
        message_group=system.message_group,
        born_at=_moment(system.born_timestamp),
        born_host=system.born_host,
        stored_at=_moment(system.store_timestamp),
        deliver_at=_moment(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None,
        queue_id=system.queue_id,
        offset=system.queue_offset,
        endpoints=endpoints,
        is_corrupted=not sound,
    )


def is_sound(body: bytes, digest: v2.Digest) -> bool:
    """Whether *body* is what *digest* says. CRC32 is written in three ways by other clients; all are known."""
    found = digest.checksum.upper()
    if digest.type == v2.MD5:
        return hashlib.md5(body, usedforsecurity=False).hexdigest().upper() == found
    if digest.type == v2.SHA1:
        return hashlib.sha1(body, usedforsecurity=False).hexdigest().upper() == found
    if digest.type == v2.CRC32:
        number = zlib.crc32(body)
        return found in (f"{number:X}", f"{number:08X}", str(number))
    return True


def _open_body(wire: v2.Message) -> tuple[bytes, bool]:
    sound = is_sound(wire.body, wire.system_properties.body_digest)
    if not sound or wire.system_properties.body_encoding != v2.GZIP:
        return wire.body, sound
    body = unpack(wire.body)
    return (wire.body, False) if body is None else (body, True)


def unpack(body: bytes) -> bytes | None:
    """The content of the compressed *body*; None if it is damaged, or larger than :data:`MAX_UNPACKED`.

    The protocol has one name for all methods: clients of RocketMQ 5 use gzip or zlib, those of RocketMQ 4 zlib, LZ4 or
    Zstandard. The first bytes tell which it is.
    """
    codec = _CODECS.get(body[:4])
    if codec is not None:
        return _unpack_with(codec, body)
    try:
        unpacker = zlib.decompressobj(wbits=47)
        found = unpacker.decompress(body, MAX_UNPACKED)
        if not unpacker.eof:
            return None
        if not unpacker.unused_data.startswith(_GZIP):
            return found
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as members:  # several, one after the other
            found = members.read(MAX_UNPACKED + 1)
    except (zlib.error, gzip.BadGzipFile, EOFError):
        return None
    return found if len(found) <= MAX_UNPACKED else None


def _unpack_with(codec: str, body: bytes) -> bytes | None:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as unpacker:
            found: bytes = unpacker.read(MAX_UNPACKED + 1)
    except OSError:
        return None
    return found if len(found) <= MAX_UNPACKED else None


def to_datetime(time: int) -> datetime:
    """*time* (microseconds) in UTC; one that no :class:`datetime` can have is the first or the last that one can."""
    try:
        return timestamps.to_datetime(time)
    except OverflowError:
        return (datetime.max if time > 0 else datetime.min).replace(tzinfo=UTC)


def _moment(stamp: Any) -> datetime:
    return to_datetime(stamp.seconds * 1_000_000 + stamp.nanos // 1000)
