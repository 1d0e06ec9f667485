"""Copying tasks of the job ``duplication``: one item after the other, like a worker of the mill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import sqlalchemy as sa

from millstream.core.clock import SystemClock
from millstream.core.decoding import prepared
from millstream.core.errors import MillstreamError
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.mill.tasks import Duplicate
from millstream.pipeline.planning.binned_work import BinTarget, Work, fill_bin
from millstream.stores import open_provider

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


def copy_part(
    parts: Iterable[pa.RecordBatch], stores: Mapping[str, str], pair: Pair, space: str, data: BinTarget
) -> Iterator[pa.RecordBatch]:
    """Copy the items of one bin from the source of *pair* to its destination, as a worker would; write what came of it.

    The manifest is the driver's; here none is at hand, so that nothing can be taken for deleted (promise P8). Results
    are :data:`COPIED_SCHEMA`; yields what :func:`~millstream.pipeline.planning.binned_work.fill_bin` does.
    """
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)

    def begin() -> Work:
        providers = ConfiguredStores({name: open_provider(url) for name, url in stores.items()}, SystemClock())
        processor = DuplicationProcessor(providers, Manifest(engine))

        def copy(part: pa.RecordBatch) -> list[pa.RecordBatch]:
            tasks = (Duplicate(pair.source, pair.destination, space, name) for name in part["content_id"].to_pylist())
            return [pa.RecordBatch.from_pylist([_copied(processor, task) for task in tasks], COPIED_SCHEMA)]

        return copy

    try:
        yield from fill_bin(parts, begin, COPIED_SCHEMA, data, size="bytes")
    finally:
        engine.dispose()


def decode_events(data: bytes) -> list[ManifestEvent]:
    """The events of a row of :data:`COPIED_SCHEMA`."""
    return msgspec.msgpack.decode(data, type=prepared(list[ManifestEvent]))


def _copied(processor: DuplicationProcessor, task: Duplicate) -> dict[str, Any]:
    row: dict[str, Any] = {"content_id": task.content_id, "summary": "", "events": _encode([]), "bytes": 0}
    try:
        result = processor.process(task, 1)
    except (MillstreamError, OSError) as error:
        return row | {"error": f"{error}"}
    size = sum(event.size for event in result.events)
    return row | {"summary": result.summary, "events": _encode(list(result.events)), "bytes": size, "error": None}
