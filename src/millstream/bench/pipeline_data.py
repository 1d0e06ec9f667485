"""What the benchmark of the jobs on Spark works on: a log, JSON lines, and listings of any number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.bench.batching_spark import fleet_messages
from millstream.log import LogSpec, open_store

BODY = 100
"""Bytes of a message's body."""

SOURCES = 1000
_MESSAGES_AT_ONCE = 500_000
_ITEMS_AT_ONCE = 100_000


def log_name(count: int) -> str:
    """The name of the log of *count* messages."""
    return f"fleet-{count}"


def write_log(url: str, count: int, seed: int) -> None:
    """A log of *count* messages, unless it is there."""
    with open_store(url) as store:
        log = store.log(LogSpec(log_name(count)))
        if log.last_id:
            return
        with log.writer() as writer:
            for part in _messages(count, seed):
                for batch in part.to_batches(max_chunksize=65_536):
                    writer.append(batch)


def _messages(count: int, seed: int) -> Iterator[pa.Table]:
    """*count* messages, some at a time: what is made for a run must not count as its memory."""
    for first in range(0, count, _MESSAGES_AT_ONCE):
        yield fleet_messages(min(_MESSAGES_AT_ONCE, count - first), SOURCES, seed, body=BODY, first=first)


def write_lines(folder: Path, count: int) -> None:
    """*count* messages as JSON lines, unless they are there."""
    from millstream.core.message import Message, encode_line

    if folder.exists():
        return
    folder.mkdir()
    parts = (batch for part in _messages(count, 3) for batch in part.to_batches(max_chunksize=50_000))
    for number, part in enumerate(parts):
        with (folder / f"{number}.jsonl").open("wb") as file:
            file.writelines(encode_line(Message(**row)) + b"\n" for row in part.to_pylist())


def write_listings(folder: Path, count: int) -> None:
    """Two listings of the same *count* items and the manifest of both; one in a hundred has changed since.

    Unless they are there.
    """
    from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA
    from millstream.pipeline.tasks.copy_comparison import RECORDED_SCHEMA

    if folder.exists():
        return
    folder.mkdir()
    with (
        pq.ParquetWriter(folder / "listed.parquet", INVENTORY_SCHEMA) as listed,
        pq.ParquetWriter(folder / "recorded.parquet", RECORDED_SCHEMA) as recorded,
    ):
        for store in ("a", "b"):
            for start in range(0, count, _ITEMS_AT_ONCE):
                given = _items(store, range(start, min(start + _ITEMS_AT_ONCE, count)))
                listed.write_table(pa.table([given[name] for name in INVENTORY_SCHEMA.names], schema=INVENTORY_SCHEMA))
                given["modified"] = pa.repeat(pa.scalar(2, pa.int64()), len(given["size"]))
                recorded.write_table(pa.table([given[name] for name in RECORDED_SCHEMA.names], schema=RECORDED_SCHEMA))


def _items(store: str, numbers: range) -> dict[str, Any]:
    """The columns of a listing and of the manifest for the items *numbers* of *store*."""
    count, changed = len(numbers), np.arange(numbers.start, numbers.stop) % 100 == 0
    names = pa.array([f"folder-{number // 1000:07}/item-{number:010}" for number in numbers])
    return {
        "store": pa.repeat(store, count), "space": pa.repeat("docs", count), "content_id": names,
        "size": pa.repeat(pa.scalar(1000, pa.int64()), count), "modified": pa.array(np.where(changed, 9, 1)),
        "error": pa.nulls(count, pa.string()), "sha256": names, "deleted": pa.repeat(False, count),
    }  # fmt: skip
