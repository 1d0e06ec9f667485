"""Many messages in one call: an extension of the protocol between our broker and our clients. The protocol sends each
message as a separate frame or object, which costs either side up to 0.1 ms. A client says in its settings that it is
one of ours, the broker says in its answer that it has these calls, and from then on messages are sent, received and
acknowledged column by column. With other programs both use the plain protocol.

Columns are lists with an entry for each message. One whose entries would all be empty may be left out, and in the
answer to a receive one entry may stand for all. Times are microseconds since the epoch, UTC; statuses are the
protocol's codes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from crc32c import crc32c

from millstream.core.decoding import prepared
from millstream.messaging.protocol import v2

_VERSION: Final = 2
"""Changes with the format of any request or answer. Then a server of another version has no such calls, instead of
answering them in a format that the client cannot read, with messages that are already leased."""

BATCH_SERVICE: Final = f"millstream.broker.v{_VERSION}.Batches"
PLATFORM_PREFIX: Final = "millstream "
"""The prefix of the platform that our clients state, and of the broker's answer to them."""

_OFFER_PREFIX: Final = f"{PLATFORM_PREFIX}batches-"
BATCH_OFFER: Final = f"{_OFFER_PREFIX}{_VERSION}"

MAX_BATCH: Final = 1 << 20
"""The messages that one call may have. A column with more entries is not decoded: each would become an object."""

Entry = TypeVar("Entry")
Column = Annotated[list[Entry], msgspec.Meta(max_length=MAX_BATCH)]
Refused = Annotated[dict[int, tuple[int, str]], msgspec.Meta(max_length=MAX_BATCH)]
"""By row the code and text of each refused message."""


class ByteColumn(msgspec.Struct, frozen=True, array_like=True):
    """Byte strings, one after the other in ``data``; ``lengths`` are theirs, or one length above 0 for all.

    So the broker takes and gives messages without an object for each of them.
    """

    count: int
    lengths: Column[int]
    data: bytes

    @property
    def is_valid(self) -> bool:
        """Whether ``data`` has as many strings as it should, each of its length; for columns of other processes."""
        lengths = self.lengths
        if len(lengths) == 1:
            return lengths[0] * self.count == len(self.data) and (lengths[0] > 0 or self.count == 1)
        return len(lengths) == self.count and min(lengths, default=0) >= 0 and sum(lengths) == len(self.data)

    def values(self) -> list[bytes]:
        """The byte strings."""
        return self._cut(self.data)

    def texts(self) -> list[str]:
        """The byte strings as text. Raises :class:`UnicodeDecodeError`."""
        if self.data.isascii():
            return self._cut(self.data.decode("ascii"))
        return [value.decode() for value in self.values()]

    def _cut(self, data: Any) -> list[Any]:
        if len(self.lengths) == 1:
            step = self.lengths[0]
            return [data[begin : begin + step] for begin in range(0, len(data), step)] if step else [data]
        return [data[begin:end] for begin, end in itertools.pairwise(itertools.accumulate(self.lengths, initial=0))]


EMPTY_COLUMN: Final = ByteColumn(0, [], b"")


def byte_column(values: Sequence[bytes]) -> ByteColumn:
    """*values* as a column."""
    return ByteColumn(len(values), _lengths(values), b"".join(values))


def text_column(texts: Sequence[str]) -> ByteColumn:
    """*texts* as a column."""
    joined = "".join(texts)
    if not joined.isascii():
        return byte_column([text.encode() for text in texts])
    return ByteColumn(len(texts), _lengths(texts), joined.encode("ascii"))


def _lengths(values: Sequence[bytes] | Sequence[str]) -> list[int]:
    lengths = list(map(len, values))
    is_even = bool(lengths) and lengths[0] > 0 and lengths.count(lengths[0]) == len(lengths)
    return lengths[:1] if is_even else lengths


class SendBatchRequest(msgspec.Struct, kw_only=True, frozen=True, array_like=True):
    """Messages of one topic, one type (NORMAL or FIFO) and one message group at most, born at one time and host."""

    namespace: str
    topic: str
    kind: int
    group: str
    host: str
    born: int
    ids: ByteColumn
    bodies: ByteColumn
    tags: Column[str] = []
    keys: Column[tuple[str, ...]] = []
    properties: Column[dict[str, str]] = []


class SendBatchResponse(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a :class:`SendBatchRequest`: the offsets, and by row the code and text of each refused message.

    One offset is that of the first message, and the others follow it.
    """

    code: int
    text: str
    offsets: Column[int] = []
    refused: Refused = {}


class ReceiveBatchResponse(msgspec.Struct, kw_only=True, frozen=True, array_like=True):
    """The answer to a receive: its status, when the messages were handed out (0: not told), and the messages.

    ``crc`` is the CRC-32C of all bodies, one after the other. One of the ``offsets`` is that of the first message, and
    the others follow it. ``due`` is when a delayed message was to be delivered (0: it was not delayed); ``zipped`` are
    the rows whose bodies are in gzip.
    """

    code: int
    text: str
    delivered: int = 0
    crc: int = 0
    ids: ByteColumn = EMPTY_COLUMN
    handles: ByteColumn = EMPTY_COLUMN
    attempts: Column[int] = []
    bodies: ByteColumn = EMPTY_COLUMN
    queues: Column[int] = []
    offsets: Column[int] = []
    born: Column[int] = []
    stored: Column[int] = []
    hosts: Column[str] = []
    tags: Column[str] = []
    keys: Column[tuple[str, ...]] = []
    groups: Column[str] = []
    properties: Column[dict[str, str]] = []
    due: Column[int] = []
    zipped: Column[int] = []


class AckBatchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one topic that a group is done with, by their receipt handles."""

    namespace: str
    group: str
    topic: str
    handles: ByteColumn


class AckBatchResponse(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an :class:`AckBatchRequest`: by row the code and text of each refused message."""

    code: int
    text: str
    refused: Refused = {}


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


def checksum(bodies: ByteColumn) -> int:
    """The CRC-32C of *bodies*, one after the other."""
    found: int = crc32c(bodies.data)
    return found


def is_millstream_client(settings: v2.Settings) -> bool:
    """Whether *settings* come from a client that understands the offer."""
    return settings.user_agent.platform.startswith(PLATFORM_PREFIX)


def is_millstream_broker(settings: v2.Settings) -> bool:
    """Whether the server that answered with *settings* is ours, of any version. Apache's repeats what the client states
    of itself."""
    return settings.user_agent.platform.startswith(_OFFER_PREFIX)


def offers_batches(settings: v2.Settings) -> bool:
    """Whether the server that answered with *settings* has these calls."""
    return settings.user_agent.platform == BATCH_OFFER


def _read(kind: Any, data: bytes) -> Any:
    return _decoders[kind].decode(data) if kind in _decoders else kind.FromString(data)


def _write(value: Any) -> bytes:
    return _encoder.encode(value) if type(value) in _decoders else value.SerializeToString()
