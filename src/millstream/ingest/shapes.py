"""The shapes of payloads, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.core.message import Message
from millstream.ingest.arrival import Arrival
from millstream.ingest.errors import IngestInputError, MalformedError
from millstream.ingest.plain_json import PlainJson
from millstream.ingest.thin_edge import is_thin_edge, thin_edge

Shape = Callable[[Arrival], Sequence[Message]]
"""Makes records of a message; raises :class:`~millstream.ingest.errors.MalformedError`."""

SHAPES = ("auto", "thin-edge", "json", "raw")
"""``auto`` is thin-edge on its topics and json on all others."""


def shape_named(name: str, plain: PlainJson | None = None) -> Shape:
    """The shape *name* of :data:`SHAPES`; *plain* says where things are in plain JSON.

    Raises :class:`IngestInputError`.
    """
    plain = plain or PlainJson()
    if name == "thin-edge":
        return thin_edge
    if name == "json":
        return plain
    if name == "raw":
        return raw
    if name != "auto":
        raise IngestInputError(f"{name!r} is no shape of payloads; choose one of {', '.join(SHAPES)}")
    return lambda arrival: thin_edge(arrival) if is_thin_edge(arrival.topic) else plain(arrival)


def raw(arrival: Arrival) -> list[Message]:
    """The payload as it is, whatever it is: the last level of the topic is the key, the others are the source."""
    source, _, key = arrival.topic.rpartition("/")
    if not key:
        raise MalformedError("topic", "the last level of the topic is empty, and nothing is left for the key")
    return [Message(arrival.payload, key, source)]
