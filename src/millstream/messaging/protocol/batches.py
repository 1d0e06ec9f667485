"""Many messages in one answer: what our broker offers to our clients beside the protocol.

The protocol gives a message a frame, which costs either side about 0.1 ms whatever the message. A client says in its
settings that it is one of ours, the broker says in its answer that it has :data:`RECEIVE`, and from then on a receive
is one call with one answer. To everybody else both keep to the protocol.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millstream.messaging.protocol import v2

BATCH_SERVICE: Final = "millstream.broker.v1.Batches"
RECEIVE: Final = f"/{BATCH_SERVICE}/Receive"
OURS: Final = "millstream "
"""What the platform of our clients begins with, and that of the broker which answers one of them."""

OFFER: Final = OURS + "batched-receive"


class ReceivedBatch(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a receive: its status, every message as the protocol writes it, and when they were handed out.

    ``delivered`` is in microseconds; 0 where it is not told.
    """

    code: int
    text: str
    messages: list[bytes] = []
    delivered: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ReceivedBatch)


def encode_batch(batch: ReceivedBatch) -> bytes:
    """*batch* as it is sent."""
    return _encoder.encode(batch)


def decode_batch(data: bytes) -> ReceivedBatch:
    """What :func:`encode_batch` wrote. Raises msgspec's ``DecodeError``."""
    return _decoder.decode(data)


def is_ours(settings: v2.Settings) -> bool:
    """Whether *settings* come from a client that understands the offer."""
    return settings.user_agent.platform.startswith(OURS)


def is_offered(settings: v2.Settings) -> bool:
    """Whether the server that answered with *settings* has batched receives."""
    return settings.user_agent.platform == OFFER
