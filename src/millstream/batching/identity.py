"""The name of a batch: a hash of what is in it and of the rules that drew its borders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from millstream.batching.batch_config import BatchConfig
from millstream.batching.event import CutReason, EventBatch, Kind, Row

_encoder = msgspec.json.Encoder()


def batch_id(config: BatchConfig, source: str, rows: Sequence[Row], kind: Kind = "batch") -> str:
    """The identity of the batch of *rows* (sorted, none twice): 64 hexadecimal digits of SHA-256.

    Ids and receive times do not enter: the same records under the same rules bear the same name on every host.
    """
    head, after_source, after_start, tail = identity_frame(config.rules_text, kind)
    members = _encoder.encode([row[:3] for row in rows])
    return hashed(
        b"".join((head, _encoder.encode(source), after_source, b"%d" % rows[0][0], after_start, members, tail))
    )


@lru_cache
def identity_frame(rules_text: str, kind: Kind) -> tuple[bytes, bytes, bytes, bytes]:
    """What is hashed before, between and after the JSON of a batch's source, its start and the list of its members.

    *rules_text* is the rules of the batch. ``docs/formats/batch-id.md`` lays the text down.
    """
    rules = f"{rules_text} kind=side" if kind == "side" else rules_text
    return _encoder.encode(("millstream batch", rules))[:-1] + b",", b",", b",", b"]"


def hashed(text: bytes) -> str:
    """The identity that *text* gives."""
    return hashlib.sha256(text).hexdigest()


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
        batch=batch_id(config, source, rows, kind),
        source=source,
        start=rows[0][0],
        end=rows[-1][0],
        closed_at=closed_at,
        cut=cut,
        events=tuple([row[4] for row in rows]),
        kind=kind,
    )
