"""The sourced packet as nerve stores it in its tables: ``NerveSourcedPacket`` of protobuf 3.

Field 1 is the source type, a number of an enumeration, field 2 the source id, field 3 the source's name, field 10 the
packet. The enumeration that the original has knows one word, ``NST_TEST``, for 0; other types are their numbers in
decimal.
"""

from __future__ import annotations

from millstream.log.errors import LogInputError
from millstream.log.sourced import Sourced, decode_name, encode_name

TYPES = {"NST_TEST": 0}
"""The source types that have a name."""

_NAMES = {number: name for name, number in TYPES.items()}
_MOST_TYPE, _MOST_ID = 2**31 - 1, 2**64 - 1
_TYPE, _ID, _NAME, _PACKET = 1 << 3 | 0, 2 << 3 | 0, 3 << 3 | 2, 10 << 3 | 2  # tags: field number and wire type


def encode_packet(message: Sourced) -> bytes:
    """*message* as the original writes it. Raises :class:`LogInputError` for what its packet has no place for."""
    number = TYPES.get(message.source_type, message.source_type)
    if isinstance(number, str):
        number = int(number) if number.isascii() and number.isdigit() else -1
    if not 0 <= number <= _MOST_TYPE or not 0 <= message.source_id <= _MOST_ID:
        raise LogInputError(
            f"invalid source {message.source_type[:40]!r} with id {message.source_id}: in the nerve layout "
            f"the type must be {', '.join(TYPES)} or a number of 0 to 2^31 - 1, and the id 0 to 2^64 - 1"
        )
    fields = [b""]
    if number:
        fields.append(_varint(_TYPE) + _varint(number))
    if message.source_id:
        fields.append(_varint(_ID) + _varint(message.source_id))
    for tag, value in ((_NAME, encode_name(message.source_name)), (_PACKET, message.payload)):
        if value:
            fields.append(_varint(tag) + _varint(len(value)) + value)
    return b"".join(fields)


def decode_packet(data: bytes) -> Sourced:
    """The sourced message that *data* holds; fields that are unknown are passed over. Raises :class:`LogInputError`."""
    number = source_id = position = 0
    payload = name = b""
    while position < len(data):
        tag, position = _read_varint(data, position)
        if tag & 7 == 0:
            value, position = _read_varint(data, position)
            number, source_id = (value if tag == _TYPE else number), (value if tag == _ID else source_id)
            continue
        size, position = _size(data, tag, position)
        if position + size > len(data):
            raise _no_packet("the packet is truncated")
        value_bytes = data[position : position + size]
        payload, name = (value_bytes if tag == _PACKET else payload), (value_bytes if tag == _NAME else name)
        position += size
    return Sourced(_NAMES.get(number, str(number)), source_id, payload, decode_name(name))


def _size(data: bytes, tag: int, position: int) -> tuple[int, int]:
    """How many bytes the field *tag* has, and where they begin."""
    fixed = {1: 8, 5: 4}.get(tag & 7)
    if fixed is not None:
        return fixed, position
    if tag & 7 != 2:
        raise _no_packet(f"the packet contains a field of wire type {tag & 7}, which is not supported")
    return _read_varint(data, position)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise _no_packet("the packet is truncated")
        number |= (data[position] & 0x7F) << shift
        position += 1
        if data[position - 1] < 0x80:
            return number & _MOST_ID, position
    raise _no_packet("the packet contains a number that is too long")


def _no_packet(why: str) -> LogInputError:
    return LogInputError(
        f"not a sourced packet of the nerve layout: {why}; read the message as bytes with `millstream log read` or "
        "`Log.read()`"
    )
