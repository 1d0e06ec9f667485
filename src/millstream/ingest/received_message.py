"""A message as a broker delivered it."""

from __future__ import annotations

import msgspec


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """One delivery: ``packet`` is its identifier in the session (0 under QoS 0).

    ``again`` says that the broker has sent it before (DUP); ``retained`` that it was kept from before we subscribed.
    ``trace`` is what its sender says in the user property ``traceparent`` of MQTT 5, if anything.
    """

    topic: str
    payload: bytes
    qos: int
    packet: int = 0
    again: bool = False
    retained: bool = False
    trace: str = ""
