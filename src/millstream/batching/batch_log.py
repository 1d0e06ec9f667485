"""The messages of a batch log (``docs/formats/batch-log.md``): the same bytes from every host."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.column_engines import ClosedTables
from millstream.batching.json_columns import concatenated, json_integers, json_lists, json_strings
from millstream.core.message import MESSAGE_SCHEMA

OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("closed_at", pa.int64()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("event_time", pa.int64()),
        pa.field("key", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""One row a message of a batch log, with what :func:`output_messages` sorts by. A reject has no times."""

_ORDER = [("closed_at", "ascending"), ("source", "ascending"), ("event_time", "ascending"), ("body", "ascending")]


def output_rows(closed: ClosedTables) -> pa.Table:
    """What *closed* holds as rows of :data:`OUTPUT_SCHEMA`: the batches, then the rejects."""
    batches = _batch_rows(closed.batches)
    return pa.concat_tables([batches, _reject_rows(closed.rejects)]) if len(closed.rejects) else batches


def output_messages(parts: list[pa.Table]) -> pa.RecordBatch:
    """*parts* (:data:`OUTPUT_SCHEMA`) as a record batch for a log: batches by closing time and source, then rejects."""
    rows = pa.concat_tables([OUTPUT_SCHEMA.empty_table(), *parts]).sort_by(_ORDER).combine_chunks()
    values = pa.StructArray.from_arrays(
        [_repeated("kind", len(rows)), pc.cast(_one(rows["kind"]), pa.binary())], fields=list(_HEADER)
    )
    headers = pa.ListArray.from_arrays(pa.array(np.arange(len(rows) + 1, dtype=np.int32)), values).cast(_HEADERS)
    names = ("body", "key", "source", "event_time")
    return pa.RecordBatch.from_arrays([*(_one(rows[name]) for name in names), headers], [*names, "headers"])


_HEADERS = MESSAGE_SCHEMA.field("headers").type
_HEADER = _HEADERS.value_type


def _batch_rows(batches: pa.Table) -> pa.Table:
    bodies = _batch_bodies(batches).cast(pa.binary()) if len(batches) else pa.array([], pa.binary())
    columns = [batches["closed_at"], batches["source"], batches["start"], batches["batch"], batches["kind"], bodies]
    return pa.table(columns, schema=OUTPUT_SCHEMA)


def _batch_bodies(batches: pa.Table) -> Any:
    events = _one(batches["events"])
    members = json_lists(json_integers(events.flatten()), pc.subtract(events.offsets, events.offsets[0]))
    return concatenated(
        '{"batch":',
        json_strings(batches["batch"]),
        ',"source":',
        json_strings(batches["source"]),
        ',"start":',
        json_integers(batches["start"]),
        ',"end":',
        json_integers(batches["end"]),
        ',"closed_at":',
        json_integers(batches["closed_at"]),
        ',"cut":',
        json_strings(batches["cut"]),
        ',"events":[',
        members,
        "]",
        _kinds(batches),
        "}",
    )


def _kinds(batches: pa.Table) -> Any:
    """The text after the events: empty for plain batches, for others their kind and the batches that they amend."""
    if pc.all(pc.equal(batches["kind"], "batch")).as_py():
        return ""
    pairs = zip(batches["kind"].to_pylist(), batches["amends"].to_pylist(), strict=True)
    texts = [_kind(kind, amends) for kind, amends in pairs]
    return pa.array(texts, pa.large_string())


def _kind(kind: str, amends: list[str]) -> str:
    said: dict[str, Any] = ({} if kind == "batch" else {"kind": kind}) | ({"amends": amends} if amends else {})
    return "," + msgspec.json.encode(said).decode("utf-8")[1:-1] if said else ""


def _reject_rows(rejects: pa.Table) -> pa.Table:
    count = len(rejects)
    none, empty = pa.nulls(count, pa.int64()), _repeated("", count)
    ids, reasons = json_integers(rejects["rejected"]), json_strings(rejects["reason"])
    bodies = concatenated('{"rejected":', ids, ',"reason":', reasons, "}").cast(pa.binary())
    return pa.table([none, empty, none, empty, _repeated("reject", count), bodies], schema=OUTPUT_SCHEMA)


def _repeated(text: str, count: int) -> Any:
    return pa.array([text]).take(pa.array(np.zeros(count, np.int64)))


def _one(column: Any) -> Any:
    """The only chunk of *column*."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
