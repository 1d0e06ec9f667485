"""The identities of whole columns of batches: the JSON of their members is made column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.columns import CutResult
from millstream.batching.event import Kind
from millstream.batching.identity import hashed, identity_frame
from millstream.batching.json_columns import concatenated, json_integers, json_lists, json_strings, needs_escapes

CLOSED_SCHEMA = pa.schema(
    [
        pa.field("batch", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("closed_at", pa.int64()),
        pa.field("cut", pa.string(), nullable=False),
        pa.field("events", pa.large_list(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("amends", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
"""One row a batch, as :class:`~millstream.batching.event.EventBatch` has it."""


def with_batch_ids(history: CutResult, kind: Kind = "batch") -> pa.Table:
    """The batches of *history*, as *kind*, under their identities: a table of :data:`CLOSED_SCHEMA`."""
    batches = history.batches
    count = len(batches)
    names = pa.array([hashed(text) for text in _texts(history, kind)], pa.string())
    kinds = pa.array([kind]).take(pa.array(np.zeros(count, np.int64)))
    no_amended = pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    return (
        batches.add_column(0, "batch", names)
        .append_column("kind", kinds)
        .append_column("amends", no_amended)
        .cast(CLOSED_SCHEMA)
    )


def _texts(history: CutResult, kind: Kind) -> list[bytes]:
    """The hashed bytes of each batch."""
    if not len(history.batches):
        return []
    members = history.events.select(["event_time", "key", "digest"]).take(history.rows)
    times, keys, digests = (members[name] for name in ("event_time", "key", "digest"))
    rows = concatenated("[", json_integers(times), *_said(keys, digests))
    head, after_source, after_start, tail = (part.decode() for part in identity_frame(history.config.rules_text, kind))
    sources, starts = json_strings(history.batches["source"]), json_integers(history.batches["start"])
    lists = json_lists(rows, _offsets(history))
    texts = concatenated(head, sources, after_source, starts, f"{after_start}[", lists, f"]{tail}")
    found: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    return found


def _said(keys: Any, digests: Any) -> tuple[Any, ...]:
    """What follows the time of each row; the text around a key is put together once for each distinct key."""
    digests = digests.combine_chunks().cast(pa.large_string())
    if needs_escapes(digests):
        return ",", json_strings(keys), ",", json_strings(digests), "]"
    encoded = keys.combine_chunks().dictionary_encode()
    around = concatenated(",", json_strings(encoded.dictionary), ',"')
    return around.take(encoded.indices), digests, '"]'


def _offsets(history: CutResult) -> Any:
    """The first and the end index of each batch's members among all members."""
    sizes = pc.list_value_length(history.batches["events"]).to_numpy()
    return np.append(0, np.cumsum(sizes))
