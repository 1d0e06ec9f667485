"""Thin Edge JSON: measurements, events and alarms on ``te/…`` topics, measurements on ``tedge/measurements``.

A message with several measurements becomes several records, for a batch holds one value a key and two messages may
share some of their measurements only. Their bodies are the values as they were written.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.core.message import Message
from millstream.ingest.errors import MalformedError
from millstream.ingest.json_members import is_number, members_of, text_of
from millstream.ingest.received_message import ReceivedMessage
from millstream.ingest.timestamps import read_timestamp

_MAIN = "device/main//"
_MOST_RECORDS = 10_000
_MOST_NAME_CHARACTERS = 1 << 20
"""Of one message: each of its records repeats the entity and the type, which may be as long as the message."""
_CHANNELS = {"m": "measurement", "e": "event", "a": "alarm"}


class _Topic(NamedTuple):
    """The entity of a message (four levels), its channel, and its type (empty if the topic has none)."""

    source: str
    channel: str
    type: str


def is_thin_edge(topic: str) -> bool:
    """Whether *topic* is one of thin-edge's."""
    return topic.startswith(("te/", "tedge/measurements/")) or topic == "tedge/measurements"


def thin_edge(arrival: ReceivedMessage) -> list[Message]:
    """The records of *arrival*, under the entity as source.

    A measurement has the key ``type/name`` (``name`` where it has no type) and the value, or the object of a group of
    values, as its body; an event or alarm has the key ``e/type`` or ``a/type`` and the whole payload as its body.
    Raises :class:`MalformedError`.
    """
    topic = _topic(arrival.topic)
    if topic.channel == "m":
        return _measurements(topic, arrival)
    members = members_of(arrival.payload) if arrival.payload else {}  # no payload at all clears an alarm
    time = read_timestamp(members["time"]) if "time" in members else None
    return [Message(arrival.payload, f"{topic.channel}/{topic.type}", topic.source, time)]


def _topic(topic: str) -> _Topic:
    levels = topic.split("/")
    if levels[0] == "tedge":
        if len(levels) > 3 or "" in levels:
            raise MalformedError(
                "topic", f"invalid topic {topic[:200]!r}: expected tedge/measurements or tedge/measurements/CHILD"
            )
        return _Topic(f"device/{levels[2]}//" if len(levels) == 3 else _MAIN, "m", "")
    if len(levels) != 7 or levels[5] not in _CHANNELS:
        kinds = ", ".join(f"{name} ({kind}s)" for name, kind in _CHANNELS.items())
        raise MalformedError(
            "topic",
            f"invalid topic {topic[:200]!r}: expected te/ENTITY/CHANNEL/TYPE with an entity of four levels and a "
            f"channel of {kinds}",
        )
    return _Topic("/".join(levels[1:5]), levels[5], levels[6])


def _measurements(topic: _Topic, arrival: ReceivedMessage) -> list[Message]:
    members = members_of(arrival.payload)
    raw_time, raw_type = members.pop("time", None), members.pop("type", None)
    time = None if raw_time is None else read_timestamp(raw_time)
    kind = topic.type or ("" if raw_type is None else text_of(raw_type, "the type"))
    if not members:
        raise MalformedError("empty", "the payload has no measurement, that is, no member besides time and type")
    if "" in members:
        raise MalformedError("member", "a measurement has an empty name: give each measurement a name")
    if len(members) > _MOST_RECORDS or len(members) * (len(kind) + len(topic.source)) > _MOST_NAME_CHARACTERS:
        raise MalformedError(
            "size",
            f"the payload has {len(members):,} measurements, under an entity and a type of {len(topic.source):,} and "
            f"{len(kind):,} characters: the limits are {_MOST_RECORDS:,} measurements, and {_MOST_NAME_CHARACTERS:,} "
            "characters of entity and type for all of them; publish several messages",
        )
    return [
        Message(_checked(name, raw), f"{kind}/{name}" if kind else name, topic.source, time)
        for name, raw in members.items()
    ]


def _checked(name: str, raw: msgspec.Raw) -> bytes:
    """The text of a value or a group of values. A group holds numbers only, one level of them."""
    text = bytes(raw)
    if is_number(raw):
        return text
    values = members_of(raw, f"measurement {name!r}") if text[:1] == b"{" else {}
    if not values or not all(map(is_number, values.values())):
        raise MalformedError("value", f"measurement {name!r} is neither a number nor a group of numbers")
    return text
