"""The name of a batch: a hash of what is in it and of the rules that drew its borders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from millstream.batching.config import BatchConfig
from millstream.batching.event import CutReason, EventBatch, Kind, Row

_DOMAIN = "millstream batch"
_encoder = msgspec.json.Encoder()


def batch_id(config: BatchConfig, source: str, rows: Sequence[Row], kind: Kind = "batch") -> str:
    """The identity of the batch of *rows* (sorted, none twice): 64 hexadecimal digits of SHA-256.

    Ids and receive times do not enter: the same records under the same rules bear the same name on every host. The
    bytes that are hashed are laid down in ``docs/formats/batch-id.md``.
    """
    members = [row[:3] for row in rows]
    text = _encoder.encode((_DOMAIN, rules_text(config, kind), source, rows[0][0], members))
    return hashlib.sha256(text).hexdigest()


def rules_text(config: BatchConfig, kind: Kind) -> str:
    """The rules as they stand in the identity of a batch of *kind*."""
    return f"{config.version} kind=side" if kind == "side" else config.version


def make_batch(
    config: BatchConfig,
    source: str,
    rows: Sequence[Row],
    closed_at: int | None,
    cut: CutReason,
    *,
    kind: Kind = "batch",
) -> EventBatch:
    """The batch of *rows* (sorted, none twice, at least one) under its identity."""
    return EventBatch(
        batch_id(config, source, rows, kind),
        source,
        rows[0][0],
        rows[-1][0],
        closed_at,
        cut,
        tuple([row[4] for row in rows]),
        kind,
    )
