"""Columns of messages as the batcher sees them: what ``message_events.py`` does with one, for many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.columns import REJECT_SCHEMA
from millstream.core.canonical import MAX_SAFE_INTEGER
from millstream.core.digests import sha256_after

COLUMNS = ("id", "event_time", "received_at", "source", "key", "body")
"""The columns of a log that batching reads."""

DIGESTS = pa.binary(32)

_HEX = 64

_digest = sha256_after()


def event_columns(messages: pa.RecordBatch) -> pa.Table:
    """*messages* (:data:`COLUMNS`) as events (``EVENT_SCHEMA``)."""
    columns = packed_columns(messages)
    columns["digest"] = hex_digests(columns["digest"])
    return pa.table([columns[name] for name in EVENT_SCHEMA.names], schema=EVENT_SCHEMA)


def out_of_range(rows: pa.RecordBatch | pa.Table) -> Any:
    """Which of *rows* (messages or events) have a time beyond the numbers of JSON, which no batch file can hold."""
    times = [rows.column(name) for name in ("event_time", "received_at")]
    beyond = [pc.or_(pc.greater(time, MAX_SAFE_INTEGER), pc.less(time, -MAX_SAFE_INTEGER)) for time in times]
    return pc.or_(*beyond)


def split_out_of_range(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """*rows* without those that are :func:`out_of_range`, and the rejects of these (``REJECT_SCHEMA``)."""
    beyond = out_of_range(rows)
    if not pc.any(beyond).as_py():
        return rows, REJECT_SCHEMA.empty_table()
    ids = rows.filter(beyond).column("id").combine_chunks()
    reasons = pa.array(["time"] * len(ids), pa.string())
    return rows.filter(pc.invert(beyond)), pa.table([ids, reasons], schema=REJECT_SCHEMA)


def packed_columns(messages: pa.RecordBatch) -> dict[str, Any]:
    """The columns of *messages* as events, the digests not yet written out (:data:`DIGESTS`)."""
    body = messages.column("body")
    columns = {name: messages.column(name) for name in ("source", "event_time", "received_at", "id")}
    digests = pa.array(list(map(_digest, body.to_pylist())), DIGESTS)
    size = pc.binary_length(body).cast(pa.int64())
    return {**columns, "key": _keys(messages, digests), "digest": digests, "size": size}


def _keys(messages: pa.RecordBatch, digests: Any) -> Any:
    """The keys of *messages*; where one has none, its content and time stand for it, as in ``message_events.py``."""
    keys = messages.column("key")
    if pc.min(pc.binary_length(keys)).as_py() != 0:
        return keys
    times = messages.column("event_time").cast(pa.string())
    return pc.if_else(pc.equal(keys, ""), pc.binary_join_element_wise(hex_digests(digests), times, "@"), keys)


def hex_digests(digests: Any) -> Any:
    """The 64 digits of each of *digests* (:data:`DIGESTS`), written all at once."""
    width = digests.type.byte_width
    data = memoryview(digests.buffers()[1] or b"")[digests.offset * width : (digests.offset + len(digests)) * width]
    offsets = np.arange(len(digests) + 1, dtype=np.int32) * _HEX
    return pa.StringArray.from_buffers(len(digests), pa.py_buffer(offsets), pa.py_buffer(data.hex().encode("ascii")))
