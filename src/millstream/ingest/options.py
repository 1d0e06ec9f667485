"""The options of a connection to a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from millstream.ingest.errors import IngestInputError

Protocol = Literal["5", "3.1.1"]
"""A version of MQTT."""

MOST_IN_FLIGHT = 65_535
_MOST_TOPIC_BYTES = 65_535
MOST_PAYLOAD = 63 << 20
"""Bytes. A log takes messages of 64 MiB, with their source, key and headers."""
_MOST_EXPIRY = 2**32 - 1


class SubscribeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription: *topics* (filters, with ``+`` and ``#``) at ``qos``, in a session that outlives connections.

    ``protocol`` 5 bounds what is under way to ``in_flight`` messages, payloads to ``max_payload`` bytes, and keeps the
    session for ``expiry`` seconds after we have gone; under 3.1.1 the broker decides all three. ``retained`` says
    whether messages that it kept from before are wanted. ``keepalive`` and ``timeout`` are seconds.
    """

    topics: tuple[str, ...]
    qos: Literal[0, 1, 2] = 1
    protocol: Protocol = "5"
    in_flight: int = 1000
    max_payload: int = 1 << 20
    expiry: int = 7 * 86_400
    retained: bool = True
    keepalive: int = 60
    timeout: float = 10.0

    def __post_init__(self) -> None:
        for topic in self.topics:
            _check_filter(topic)
        if not self.topics:
            raise IngestInputError("no topic to subscribe to: give at least one topic filter, such as plant/+/#")
        if not 1 <= self.in_flight <= MOST_IN_FLIGHT:
            raise IngestInputError(
                f"invalid number of messages in flight, {self.in_flight} (--in-flight): choose 1 to {MOST_IN_FLIGHT:,}"
            )
        if not 1 <= self.max_payload <= MOST_PAYLOAD:
            raise IngestInputError(
                f"invalid maximum size of a payload, {self.max_payload:,} bytes (max_payload): choose 1 byte to "
                f"{MOST_PAYLOAD >> 20} MiB"
            )
        if not 1 <= self.expiry <= _MOST_EXPIRY:
            raise IngestInputError(
                f"invalid time for which the broker keeps the session, {self.expiry:,} seconds (expiry): choose "
                f"1 to {_MOST_EXPIRY:,} seconds"
            )

    @property
    def wanted(self) -> Mapping[str, int]:
        """The topics with their QoS."""
        return dict.fromkeys(self.topics, self.qos)


def _check_filter(topic: str) -> None:
    """Refuse what no broker would take (MQTT 5 §4.7)."""
    if not 1 <= len(topic.encode()) <= _MOST_TOPIC_BYTES or "\0" in topic:
        raise IngestInputError(
            f"invalid topic filter {topic[:200]!r}: it must have 1 to {_MOST_TOPIC_BYTES:,} bytes, and no NUL character"
        )
    levels = topic.split("/")
    if "#" in levels[:-1] or any(set("+#") & set(level) and len(level) > 1 for level in levels):
        raise IngestInputError(
            f"invalid topic filter {topic[:200]!r}: '+' and '#' must each be a whole level, and '#' must be the last "
            "level, as in 'plant/+/#'"
        )
