"""Messages that say which object they come from: the ``SourcedPacket`` of the seed document nerve.

Its source type and id become the ``source`` of a message, ``TYPE:ID``, which is what batches are formed by and what
readers can tell apart without a look at the body; its source name becomes a header.
"""

from __future__ import annotations

import re

import msgspec

from millstream.core.message import Message
from millstream.log.errors import LogInputError

NAME_HEADER = "source-name"
"""The header that holds the name of a source, where it has one."""

_SOURCE = re.compile(r"(.+):(0|[1-9][0-9]{0,19})", re.DOTALL)
_MOST = 2**64 - 1


class Sourced(msgspec.Struct, frozen=True):
    """A payload from the object *source_id* (0 to 2⁶⁴ − 1) of the kind *source_type*, which may have a name."""

    source_type: str
    source_id: int
    payload: bytes
    source_name: str = ""

    def message(self, key: str = "", event_time: int | None = None) -> Message:
        """This as a message of a log. Raises :class:`LogInputError` for a source that is none."""
        if not self.source_type or not 0 <= self.source_id <= _MOST:
            raise LogInputError(
                f"invalid source {self.source_type[:40]!r} with id {self.source_id}: a source needs a "
                "type and an id of 0 to 2^64 - 1"
            )
        headers = ((NAME_HEADER, encode_name(self.source_name)),) if self.source_name else ()
        source = f"{self.source_type}:{self.source_id}"
        return Message(self.payload, key, source, event_time, headers=headers)


def as_sourced(message: Message) -> Sourced:
    """The sourced message that *message* holds. Raises :class:`LogInputError` where its source is of another form."""
    found = _SOURCE.fullmatch(message.source)
    if found is None or int(found[2]) > _MOST:
        raise LogInputError(f"invalid source {message.source[:80]!r}: a source must be TYPE:ID, with an ID below 2^64")
    name = decode_name(dict(message.headers).get(NAME_HEADER, b""))
    return Sourced(found[1], int(found[2]), message.body, name)


def encode_name(name: str) -> bytes:
    """The name of a source as UTF-8. Raises :class:`LogInputError` for text that has none."""
    try:
        return name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LogInputError(
            f"invalid source name {name[:40]!r}: remove character {error.start + 1}, which is not text ({error.reason})"
        ) from error


def decode_name(data: bytes) -> str:
    """The name of a source that *data* is, in UTF-8. Raises :class:`LogInputError`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LogInputError(
            f"the source name {data[:40]!r} is not UTF-8: {error.reason} at byte {error.start}"
        ) from error
