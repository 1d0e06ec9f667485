"""The acknowledgements of consumers: a state of the log for each consumer."""

from __future__ import annotations

import msgspec

from millstream.core.decoding import prepared
from millstream.log.backend import VersionedValue
from millstream.log.errors import LogInputError
from millstream.log.ids import IdRange


class ConsumerPosition(msgspec.Struct, frozen=True):
    """The acknowledgements of a consumer: all ids up to ``pointer``, and the ranges ``ahead`` of it."""

    pointer: int = 0
    ahead: tuple[IdRange, ...] = ()


CONSUMERS = "consumer/"
"""The prefix of the states that hold consumers' positions."""


def consumer_key(consumer: str) -> str:
    """The name of the state that holds the position of *consumer*."""
    if not consumer or len(consumer) > 255:
        raise LogInputError(f"invalid consumer name {consumer[:80]!r}: use 1 to 255 characters")
    return CONSUMERS + consumer


def encode_position(position: ConsumerPosition) -> bytes:
    """*position* as JSON, for a state."""
    return msgspec.json.encode(position)


def decode_position(state: VersionedValue) -> ConsumerPosition:
    """The position in *state*; the beginning where it was never written."""
    return msgspec.json.decode(state.value, type=prepared(ConsumerPosition)) if state.value else ConsumerPosition()
