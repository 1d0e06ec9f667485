"""The shapes of payloads, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.core.message import Message
from millstream.ingest.errors import IngestInputError, MalformedError
from millstream.ingest.plain_json import PlainJson, checked_source
from millstream.ingest.received_message import ReceivedMessage
from millstream.ingest.thin_edge import is_thin_edge, thin_edge

PayloadParser = Callable[[ReceivedMessage], Sequence[Message]]
"""Makes records of a message; raises :class:`~millstream.ingest.errors.MalformedError`."""

PARSER_NAMES = ("auto", "thin-edge", "json", "raw")
"""``auto`` is thin-edge on its topics and json on all others."""


def payload_parser(name: str, plain: PlainJson | None = None) -> PayloadParser:
    """The shape *name* of :data:`PARSER_NAMES`; *plain* says where things are in plain JSON.

    Raises :class:`IngestInputError`.
    """
    plain = plain or PlainJson()
    if name == "thin-edge":
        return thin_edge
    if name == "json":
        return plain
    if name == "raw":
        return parse_raw
    if name != "auto":
        raise IngestInputError(f"unknown payload parser {name!r}: choose one of {', '.join(PARSER_NAMES)}")
    return lambda arrival: thin_edge(arrival) if is_thin_edge(arrival.topic) else plain(arrival)


def parse_raw(arrival: ReceivedMessage) -> list[Message]:
    """The payload as it is, whatever it is: the last level of the topic is the key, the others are the source."""
    source, _, key = arrival.topic.rpartition("/")
    if not key:
        raise MalformedError(
            "topic",
            f"the last level of the topic {arrival.topic[:200]!r} is empty and gives no key: publish to a topic whose "
            "last level is not empty, or use the parser json",
        )
    return [checked_source(Message(arrival.payload, key, source))]
