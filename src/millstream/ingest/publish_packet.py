"""The PUBLISH packet of MQTT 3.1.1 and 5, taken apart."""

from __future__ import annotations

import struct

from millstream.core.tracing import HEADER
from millstream.ingest.received_message import ReceivedMessage

_TRACE_CHARACTERS = 55  # of a `traceparent`, which is copied to each record of the message


def decode_publish(command: int, packet: bytes | bytearray, *, properties: bool) -> ReceivedMessage:
    """The message of a PUBLISH packet (MQTT 5 §3.3), its first byte *command* and all after its length in *packet*.

    Of its properties a log keeps the trace that it is part of, if that has the length of one, and none stands for the
    topic, for we allow no aliases.
    Raises IndexError or struct.error where the packet is too short.
    """
    qos = command >> 1 & 3
    (length,) = struct.unpack_from("!H", packet)
    place, number, trace = 2 + length, 0, ""
    if qos:
        (number,) = struct.unpack_from("!H", packet, place)
        place += 2
    if properties:
        size, begin = _varint(packet, place)
        place = begin + size
        if size:
            trace = _user_property(packet[begin:place], HEADER.encode("ascii"))
            trace = trace if len(trace) == _TRACE_CHARACTERS else ""
    if place > len(packet):
        raise IndexError("the packet ends within its header")
    topic = packet[2 : 2 + length].decode("utf-8", "replace")
    return ReceivedMessage(
        topic=topic,
        payload=bytes(packet[place:]),
        qos=qos,
        packet=number,
        again=bool(command & 8),
        retained=bool(command & 1),
        trace=trace,
    )


_USER, _VARINT = 0x26, 0x0B
_SIZES = {0x01: 1, 0x02: 4, 0x23: 2}
"""Of the properties of a PUBLISH those of a fixed size, in bytes; the others begin with their length."""


def _user_property(properties: bytes | bytearray, name: bytes) -> str:
    """The first user property of this *name* (MQTT 5 §3.3.2.3); empty without one."""
    place = 0
    while place < len(properties):
        kind, place = properties[place], place + 1
        if kind == _USER:
            key, place = _string(properties, place)
            value, place = _string(properties, place)
            if key == name:
                return value.decode("ascii", "replace")
        elif kind == _VARINT:
            _, place = _varint(properties, place)
        elif kind in _SIZES:
            place += _SIZES[kind]
        else:
            _, place = _string(properties, place)
    return ""


def _string(data: bytes | bytearray, place: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("!H", data, place)
    return bytes(data[place + 2 : place + 2 + length]), place + 2 + length


def _varint(data: bytes | bytearray, place: int) -> tuple[int, int]:
    """A number, seven bits a byte, and where it ends."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
