"""Copying tasks of the job ``duplication``: one item after the other, like a worker of the mill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
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
from millstream.mill.mount_check import MountCheck
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

LEFT = "left to the workers: the destination has other bytes, or the source is not what its audit has recorded"
"""The summary of an item that a worker is to decide about, with the manifest, the change guard and the audit."""

_encode = msgspec.msgpack.encode


def copy_part(
    parts: Iterable[pa.RecordBatch],
    stores: Mapping[str, str],
    pair: Pair,
    space: str,
    data: BinTarget,
    *,
    filled: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Copy the items of one bin from the source of *pair* to its destination, as a worker would; write what came of it.

    The manifest is the driver's; here none is at hand, so that nothing can be taken for deleted (promise P8), and no
    copy is replaced: such an item is :data:`LEFT`. Stores of *filled* (ids) should have items: one that lists no space
    is not mounted. Results are :data:`COPIED_SCHEMA`; yields what
    :func:`~millstream.pipeline.planning.binned_work.fill_bin` does.
    """
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)

    def begin() -> Work:
        clock, opened = SystemClock(), {name: open_provider(url) for name, url in stores.items()}
        providers = ConfiguredStores(opened, clock, mount_check=MountCheck(filled.__contains__, clock))
        processor = DuplicationProcessor(providers, Manifest(engine))

        def copy(part: pa.RecordBatch) -> list[pa.RecordBatch]:
            items = zip(part["content_id"].to_pylist(), part["audited"].to_pylist(), strict=True)
            tasks = ((Duplicate(pair.source, pair.destination, space, name), audited) for name, audited in items)
            return [pa.RecordBatch.from_pylist([_copied(processor, *task) for task in tasks], COPIED_SCHEMA)]

        return copy

    try:
        yield from fill_bin(parts, begin, COPIED_SCHEMA, data, size="bytes")
    finally:
        engine.dispose()


def decode_events(data: bytes) -> list[ManifestEvent]:
    """The events of a row of :data:`COPIED_SCHEMA`."""
    return msgspec.msgpack.decode(data, type=prepared(list[ManifestEvent]))


def _copied(processor: DuplicationProcessor, task: Duplicate, audited: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"content_id": task.content_id, "summary": "", "events": _encode([]), "bytes": 0}
    try:
        result = processor.copy_new(task, audited)
    except (MillstreamError, OSError) as error:
        return row | {"error": f"{error}"}
    if result is None:
        return row | {"summary": LEFT, "error": None}
    size = sum(event.size for event in result.events)
    return row | {"summary": result.summary, "events": _encode(list(result.events)), "bytes": size, "error": None}
