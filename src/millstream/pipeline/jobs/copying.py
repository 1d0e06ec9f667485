"""What tasks of the job ``duplication`` do: compare what is listed with what is recorded, copy what is not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import sqlalchemy as sa

from millstream.core.clock import SystemClock
from millstream.core.errors import MillstreamError
from millstream.mill.differences import Difference, compare
from millstream.mill.duplicator import DuplicationProcessor
from millstream.mill.manifest import Event, Manifest
from millstream.mill.policy import Pair
from millstream.mill.providers import Providers
from millstream.mill.tasks import Duplicate
from millstream.stores import open_provider

DIFFERENCE_SCHEMA = pa.schema(
    [
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("replaces", pa.bool_(), nullable=False),
    ]
)
"""One row an item that is not the same at both ends (:class:`millstream.mill.differences.Found`)."""

COPIED_SCHEMA = pa.schema(
    [
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("summary", pa.string(), nullable=False),
        pa.field("events", pa.binary(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("error", pa.string()),
    ]
)
"""One row an item that was to be copied: what the processor says, the events for the manifest as MessagePack, and why
it failed, if it did."""

_encode = msgspec.msgpack.encode


class _Listed(NamedTuple):
    size: int
    modified: int | None


class _Recorded(NamedTuple):
    sha256: str | None
    modified: int
    deleted: bool


def compare_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The differences (:data:`DIFFERENCE_SCHEMA`) of joined listings and manifest rows; what is the same is left out.

    Columns: ``content_id``; ``size`` and ``modified`` of the source and, with ``copy_``, of the destination; ``row_…``
    and ``copied_…`` for ``sha256``, ``modified`` and ``deleted`` of the manifest at both. A null ``size`` is no item, a
    null ``deleted`` no row.
    """
    for part in parts:
        columns = {name: part.column(name).to_pylist() for name in part.schema.names}
        found = []
        for values in zip(*(columns[name] for name in _JOINED), strict=True):
            name, size, modified, copy_size, copy_modified, *recorded = values
            kind, replaces = compare(
                _Listed(size, modified) if size is not None else None,
                _Listed(copy_size, copy_modified) if copy_size is not None else None,
                _Recorded(*recorded[:3]) if recorded[2] is not None else None,
                _Recorded(*recorded[3:]) if recorded[5] is not None else None,
            )
            if kind != Difference.SAME:
                found.append((name, kind.value, size or 0, replaces))
        if found:
            named = zip(zip(*found, strict=True), DIFFERENCE_SCHEMA, strict=True)
            arrays = [pa.array(column, field.type) for column, field in named]
            yield pa.RecordBatch.from_arrays(arrays, schema=DIFFERENCE_SCHEMA)


_JOINED = (
    "content_id", "size", "modified", "copy_size", "copy_modified", "row_sha256", "row_modified", "row_deleted",
    "copied_sha256", "copied_modified", "copied_deleted",
)  # fmt: skip


def copy_part(
    parts: Iterable[pa.RecordBatch], stores: Mapping[str, str], pair: Pair, space: str
) -> Iterator[pa.RecordBatch]:
    """Copy the items in the column ``content_id`` from the source of *pair* to its destination, as a worker would.

    The manifest is the driver's; here none is at hand, so that nothing can be taken for deleted (promise P8).
    """
    providers = Providers({name: open_provider(url) for name, url in stores.items()}, SystemClock())
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    processor = DuplicationProcessor(providers, Manifest(engine))
    try:
        for part in parts:
            for name in part.column("content_id").to_pylist():
                task = Duplicate(pair.source, pair.destination, space, name)
                yield pa.RecordBatch.from_pylist([_copied(processor, task)], COPIED_SCHEMA)
    finally:
        engine.dispose()


def decode_events(data: bytes) -> list[Event]:
    """The events of a row of :data:`COPIED_SCHEMA`."""
    return msgspec.msgpack.decode(data, type=list[Event])


def _copied(processor: DuplicationProcessor, task: Duplicate) -> dict[str, Any]:
    row: dict[str, Any] = {"content_id": task.content_id, "summary": "", "events": _encode([]), "bytes": 0}
    try:
        result = processor.process(task, 1)
    except (MillstreamError, OSError) as error:
        return row | {"error": f"{error}"}
    size = sum(event.size for event in result.events)
    return row | {"summary": result.summary, "events": _encode(list(result.events)), "bytes": size, "error": None}
