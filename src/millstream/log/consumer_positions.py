"""The acknowledgements of consumers: a state of the log for each consumer."""

from __future__ import annotations

import msgspec

from millstream.core.decoding import prepared
from millstream.log.backend import VersionedValue
from millstream.log.ids import IdRange
from millstream.log.spec import require_name


class ConsumerPosition(msgspec.Struct, frozen=True):
    """The acknowledgements of a consumer: all ids up to ``pointer``, and the ranges ``ahead`` of it."""

    pointer: int = 0
    ahead: tuple[IdRange, ...] = ()


CONSUMERS = "consumer/"
"""The prefix of the states that hold consumers' positions."""


def consumer_key(consumer: str) -> str:
    """The name of the state that holds the position of *consumer*."""
    require_name("consumer", consumer)
    return CONSUMERS + consumer


def encode_position(position: ConsumerPosition) -> bytes:
    """*position* as JSON, for a state."""
    return msgspec.json.encode(position)


def decode_position(state: VersionedValue) -> ConsumerPosition:
    """The position in *state*; the beginning where it was never written."""
    return msgspec.json.decode(state.value, type=prepared(ConsumerPosition)) if state.value else ConsumerPosition()
