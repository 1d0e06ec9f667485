"""Many messages in one call: an extension of the protocol between our broker and our clients. The protocol sends each
message as a separate frame or object, which costs either side up to 0.1 ms. A client says in its settings that it is
one of ours, the broker says in its answer that it has these calls, and from then on messages are sent, received and
acknowledged column by column. With other programs both use the plain protocol.

Columns are lists with an entry for each message; one whose entries would all be empty may be left out. Times are
microseconds since the epoch, UTC; statuses are the protocol's codes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from millstream.core.decoding import prepared
from millstream.messaging.protocol import v2

BATCH_SERVICE: Final = "millstream.broker.v1.Batches"
PLATFORM_PREFIX: Final = "millstream "
"""The prefix of the platform that our clients state, and of the broker's answer to them."""

BATCH_OFFER: Final = PLATFORM_PREFIX + "batches-1"

Result = TypeVar("Result")


class SendBatchRequest(msgspec.Struct, kw_only=True, frozen=True, array_like=True):
    """Messages of one topic, one type (NORMAL or FIFO) and one message group at most, born at one time and host."""

    namespace: str
    topic: str
    kind: int
    group: str
    host: str
    born: int
    ids: list[str]
    bodies: list[bytes]
    tags: list[str] = []
    keys: list[tuple[str, ...]] = []
    properties: list[dict[str, str]] = []


class SendBatchResponse(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a :class:`SendBatchRequest`: the offsets, and by row the code and text of each refused message."""

    code: int
    text: str
    offsets: list[int] = []
    refused: dict[int, tuple[int, str]] = {}


class ReceiveBatchResponse(msgspec.Struct, kw_only=True, frozen=True, array_like=True):
    """The answer to a receive: its status, when the messages were handed out (0: not told), and the messages.

    ``crc`` is the CRC-32 of all bodies, one after the other. ``due`` is when a delayed message was to be delivered (0:
    it was not delayed); ``zipped`` are the rows whose bodies are in gzip.
    """

    code: int
    text: str
    delivered: int = 0
    crc: int = 0
    ids: list[str] = []
    handles: list[str] = []
    attempts: list[int] = []
    bodies: list[bytes] = []
    queues: list[int] = []
    offsets: list[int] = []
    born: list[int] = []
    stored: list[int] = []
    hosts: list[str] = []
    tags: list[str] = []
    keys: list[tuple[str, ...]] = []
    groups: list[str] = []
    properties: list[dict[str, str]] = []
    due: list[int] = []
    zipped: list[int] = []


class AckBatchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one topic that a group is done with, by their receipt handles."""

    namespace: str
    group: str
    topic: str
    handles: list[str]


class AckBatchResponse(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an :class:`AckBatchRequest`: by row the code and text of each refused message."""

    code: int
    text: str
    refused: dict[int, tuple[int, str]] = {}


class BatchMethod(msgspec.Struct, frozen=True):
    """A call of the service: its name and the types of request and answer."""

    name: str
    request: Any
    answer: Any

    @property
    def path(self) -> str:
        """The path under which the transport knows it."""
        return f"/{BATCH_SERVICE}/{self.name}"

    def read_request(self, data: bytes) -> Any:
        """A request as it was sent. Raises msgspec's ``DecodeError``."""
        return _read(self.request, data)

    def write_request(self, request: Any) -> bytes:
        """*request* as it is sent."""
        return _write(request)

    def read_answer(self, data: bytes) -> Any:
        """An answer as it was sent. Raises msgspec's ``DecodeError``."""
        return _read(self.answer, data)


SEND: Final = BatchMethod("Send", SendBatchRequest, SendBatchResponse)
RECEIVE: Final = BatchMethod("Receive", v2.ReceiveMessageRequest, ReceiveBatchResponse)
ACK: Final = BatchMethod("Ack", AckBatchRequest, AckBatchResponse)

_encoder = msgspec.msgpack.Encoder()
_decoders: Final = {
    kind: msgspec.msgpack.Decoder(prepared(kind))
    for kind in (SendBatchRequest, SendBatchResponse, ReceiveBatchResponse, AckBatchRequest, AckBatchResponse)
}


def write_answer(answer: Any) -> bytes:
    """*answer* as it is sent."""
    return _encoder.encode(answer)


def checksum(bodies: Sequence[bytes]) -> int:
    """The CRC-32 of *bodies*, one after the other."""
    return zlib.crc32(b"".join(bodies))


def is_millstream_client(settings: v2.Settings) -> bool:
    """Whether *settings* come from a client that understands the offer."""
    return settings.user_agent.platform.startswith(PLATFORM_PREFIX)


def offers_batches(settings: v2.Settings) -> bool:
    """Whether the server that answered with *settings* has these calls."""
    return settings.user_agent.platform == BATCH_OFFER


def _read(kind: Any, data: bytes) -> Any:
    return _decoders[kind].decode(data) if kind in _decoders else kind.FromString(data)


def _write(value: Any) -> bytes:
    return _encoder.encode(value) if type(value) in _decoders else value.SerializeToString()
