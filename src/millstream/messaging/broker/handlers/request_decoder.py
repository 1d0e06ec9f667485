"""Decodes requests. A large one of very many parts is refused before there is an object for each of them: an empty
property takes one byte in a request, and 72 bytes as an object.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from millstream.core.decoding import prepared
from millstream.messaging.broker.handlers.validation import check_count
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import MAX_BATCH, AckBatchRequest, BatchMethod, SendBatchRequest
from millstream.messaging.protocol.descriptor_methods import Method

MAX_PLAIN: Final = 4 << 20
"""The bytes of a request that sends or acknowledges no batch."""

MAX_TELEMETRY: Final = 32 << 20
"""The bytes of a command that a client sends: the stacks of its threads can be large."""

MAX_SETTINGS: Final = 256 << 10
"""The bytes of such a command without these stacks."""

MAX_METADATA: Final = 16 << 20
"""The bytes of a request without the bodies (in a batch, also without the ids) of its messages."""

MAX_ACKS: Final = 65_536
"""The entries of an ``AckMessageRequest``: two bytes can be one, which takes 500 bytes as an object."""

MAX_SENDS: Final = 65_536
"""The messages of a ``SendMessageRequest``: two bytes can be one, too."""

_FEW: Final = 65_536 * 2
"""The bytes of a request that cannot have so many entries or messages."""

_LENGTH_DELIMITED: Final = 2  # the wire type of bytes, texts and messages
_MESSAGES: Final = v2.SendMessageRequest.DESCRIPTOR.fields_by_name["messages"].number << 3 | _LENGTH_DELIMITED
_STACKS: Final = v2.TelemetryCommand.DESCRIPTOR.fields_by_name["thread_stack_trace"].number << 3 | _LENGTH_DELIMITED
_MOST_FIELDS: Final = 100  # of a telemetry command, which has a few
_BODY: Final = v2.Message.DESCRIPTOR.fields_by_name["body"].number << 3 | _LENGTH_DELIMITED


def read_request(method: Method | BatchMethod, data: bytes) -> Any:
    """The request of *method* that was sent as *data*.

    Raises PAYLOAD_TOO_LARGE where it has too many bytes or parts, BAD_REQUEST where it cannot be decoded.
    """
    check, limit = _CHECKS.get(method.request), _LIMITS.get(method.request, MAX_PLAIN)
    if len(data) > limit:
        raise StatusError(
            v2.PAYLOAD_TOO_LARGE,
            f"the {method.name} request has {len(data):,} bytes; the limit is {limit:,} bytes: send less in one call",
        )
    try:
        if check is not None:
            check(data)
        return method.read_request(data)
    except (DecodeError, msgspec.DecodeError, ValueError) as error:
        raise StatusError(
            v2.BAD_REQUEST, f"the {method.name} request cannot be decoded ({error}): check the version of the client"
        ) from error


class _ColumnSizes(msgspec.Struct, frozen=True, array_like=True):
    """A :class:`~millstream.messaging.protocol.batch_calls.ByteColumn` without an object for each length."""

    count: int
    lengths: msgspec.Raw
    data: memoryview


class _SendSizes(msgspec.Struct, frozen=True, array_like=True):
    """The columns of bytes of a :class:`SendBatchRequest`."""

    namespace: msgspec.Raw
    topic: msgspec.Raw
    kind: msgspec.Raw
    group: msgspec.Raw
    host: msgspec.Raw
    born: msgspec.Raw
    ids: _ColumnSizes
    bodies: _ColumnSizes


class _AckSizes(msgspec.Struct, frozen=True, array_like=True):
    """The column of bytes of an :class:`AckBatchRequest`."""

    namespace: msgspec.Raw
    group: msgspec.Raw
    topic: msgspec.Raw
    handles: _ColumnSizes


_send_sizes: Final = msgspec.msgpack.Decoder(prepared(_SendSizes))
_ack_sizes: Final = msgspec.msgpack.Decoder(prepared(_AckSizes))


def _check_send_batch(data: bytes) -> None:
    sizes = _send_sizes.decode(data)
    check_count(sizes.ids.count)
    _check_metadata(len(data) - len(sizes.ids.data) - len(sizes.bodies.data))


def _check_ack_batch(data: bytes) -> None:
    sizes = _ack_sizes.decode(data)
    check_count(sizes.handles.count)
    _check_metadata(len(data) - len(sizes.handles.data))


def _check_messages(data: bytes) -> None:
    if len(data) > _FEW and next(itertools.islice(_fields(data, 0, len(data)), MAX_SENDS, None), None):
        raise _too_large("too many messages", f"{MAX_SENDS:,}")
    if len(data) <= MAX_PLAIN:
        return
    sizes = list(itertools.islice(_body_bytes(data), MAX_BATCH + 1))
    if len(sizes) > MAX_BATCH:
        raise _too_large("too many messages, properties and other fields", f"{MAX_BATCH:,}")
    _check_metadata(len(data) - sum(sizes))


def _check_telemetry(data: bytes) -> None:
    if len(data) <= MAX_SETTINGS:
        return
    fields = list(itertools.islice(_fields(data, 0, len(data)), _MOST_FIELDS + 1))
    stacks = sum(end - begin for key, begin, end in fields if key == _STACKS)
    if len(fields) > _MOST_FIELDS or len(data) - stacks > MAX_SETTINGS + _MOST_FIELDS:
        raise StatusError(
            v2.PAYLOAD_TOO_LARGE,
            f"the settings of the client are too large; the limit is {MAX_SETTINGS:,} bytes: name fewer topics",
        )


def _check_acks(data: bytes) -> None:
    group_and_topic = 2
    fields = _fields(data, 0, len(data))
    if len(data) > _FEW and next(itertools.islice(fields, MAX_ACKS + group_and_topic, None), None):
        raise _too_large("too many acknowledgements", f"{MAX_ACKS:,}")


def _body_bytes(data: bytes) -> Iterator[int]:
    """For each message of the ``SendMessageRequest`` *data* and each of its fields: its bytes if it is the body, else
    0. Raises ValueError where *data* is no such request."""
    for key, begin, end in _fields(data, 0, len(data)):
        yield 0
        if key == _MESSAGES:
            for inner, start, stop in _fields(data, begin, end):
                yield stop - start if inner == _BODY else 0


_CHECKS: Final[dict[Any, Callable[[bytes], None]]] = {
    SendBatchRequest: _check_send_batch,
    AckBatchRequest: _check_ack_batch,
    v2.SendMessageRequest: _check_messages,
    v2.AckMessageRequest: _check_acks,
    v2.TelemetryCommand: _check_telemetry,
}

_LIMITS: Final[dict[Any, float]] = {
    **dict.fromkeys((SendBatchRequest, AckBatchRequest, v2.SendMessageRequest), math.inf),  # gRPC's own limit
    v2.TelemetryCommand: MAX_TELEMETRY,
}


def _check_metadata(size: int) -> None:
    if size > MAX_METADATA:
        raise _too_large(f"{size:,} bytes besides the bodies of its messages", f"{MAX_METADATA:,} bytes")


def _too_large(size: str, limit: str) -> StatusError:
    return StatusError(
        v2.PAYLOAD_TOO_LARGE, f"the call has {size}; the limit is {limit}: divide the messages among several calls"
    )


def _fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The key (number and wire type) of each field of the protobuf message in *data* from *begin* to *end*, and where
    its content begins and ends. Raises ValueError where that is no message."""
    while begin < end:
        key, begin = (data[begin], begin + 1) if data[begin] < 128 else _varint(data, begin, end)
        wire_type = key & 7
        if wire_type == _LENGTH_DELIMITED:
            is_short = begin < end and data[begin] < 128
            size, begin = (data[begin], begin + 1) if is_short else _varint(data, begin, end)
            stop = begin + size
        elif wire_type == 0:
            _, stop = _varint(data, begin, end)
        elif wire_type in (1, 5):
            stop = begin + (8 if wire_type == 1 else 4)
        else:
            raise ValueError(f"unknown wire type {wire_type} at byte {begin:,}")
        if stop > end:
            raise ValueError(f"a field extends past the end of its message (byte {end:,})")
        yield key, begin, stop
        begin = stop


def _varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """The number at *begin*, and where it ends."""
    number = 0
    for place in range(begin, min(begin + 10, end)):
        number |= (data[place] & 127) << 7 * (place - begin)
        if data[place] < 128:
            return number, place + 1
    raise ValueError(f"the number at byte {begin:,} has no end")
