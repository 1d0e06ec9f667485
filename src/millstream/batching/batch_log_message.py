"""The body of a message of a log of batches (``docs/formats/batch-log.md``), as programs read it."""

from __future__ import annotations

import msgspec

from millstream.batching.event import Kind
from millstream.core.decoding import prepared


class BatchLogMessage(msgspec.Struct, frozen=True):
    """A batch, or a rejected message, of which only ``rejected`` (the id, else None) and ``reason`` are set."""

    batch: str = ""
    source: str = ""
    start: int = 0
    end: int = 0
    closed_at: int | None = None
    cut: str = ""
    events: tuple[int, ...] = ()
    kind: Kind = "batch"
    rejected: int | None = None
    reason: str = ""


_decoder = msgspec.json.Decoder(prepared(BatchLogMessage))


def decode_batch_log_message(body: bytes) -> BatchLogMessage:
    """The batch or rejected message in *body*. Raises :class:`msgspec.DecodeError` where it is neither."""
    try:
        message = _decoder.decode(body)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
    if message.rejected is None and not message.batch:
        raise msgspec.ValidationError("expected a batch or a rejected message")
    return message
