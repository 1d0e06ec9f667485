"""The PUBLISH packet of MQTT 3.1.1 and 5, taken apart."""

from __future__ import annotations

import struct

from millstream.ingest.arrival import Arrival


def decode_publish(command: int, packet: bytes | bytearray, *, properties: bool) -> Arrival:
    """The message of a PUBLISH packet (MQTT 5 §3.3), its first byte *command* and all after its length in *packet*.

    Its properties say nothing that a log keeps, and none stands for the topic, for we allow no aliases. Raises
    IndexError or struct.error where the packet is too short.
    """
    qos = command >> 1 & 3
    (length,) = struct.unpack_from("!H", packet)
    place, number = 2 + length, 0
    if qos:
        (number,) = struct.unpack_from("!H", packet, place)
        place += 2
    if properties:
        place = _after_properties(packet, place)
    if place > len(packet):
        raise IndexError("the packet ends within its head")
    topic = packet[2 : 2 + length].decode("utf-8", "replace")
    return Arrival(topic, bytes(packet[place:]), qos, number, bool(command & 8), bool(command & 1))


def _after_properties(packet: bytes | bytearray, place: int) -> int:
    """Where the properties that begin at *place* end: after their length, seven bits a byte, and that many bytes."""
    length = shift = 0
    while True:
        byte = packet[place]
        length |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return place + length
