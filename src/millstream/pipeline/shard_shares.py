"""Messages as shards: what a batcher needs to know of them, in one binary value a shard.

A row a message would cost Spark far more than batching it: conversion to rows and back, a sort, a Python object each.
So tasks that read a log deal the messages out to shards by a hash of their source, and hand each shard its share as one
Arrow IPC stream. What is shuffled is a few large values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.message_columns import DIGESTS, hex_digests, packed_columns
from millstream.batching.message_events import TICK_SOURCE

SHARE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("digest", DIGESTS, nullable=False),
        pa.field("received_at", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
    ]
)
"""A share as it travels: ``EVENT_SCHEMA`` with the digest (SHA-256 of the body) as bytes."""


@lru_cache(1 << 17)
def shard_of(source: str, shards: int) -> int:
    """The shard, from 0 on, of all messages of *source*: the CRC-32 of its UTF-8 bytes modulo *shards*."""
    return zlib.crc32(source.encode("utf-8")) % shards


_Rows = npt.NDArray[np.int64]

Cuts = Mapping[str, Sequence[int]]
"""Sources whose messages several shards share, and the event times, ascending, at which the next one takes over."""


def shares_of(
    messages: pa.RecordBatch, shards: int, *, whole: bool = False, cuts: Cuts | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The share (:data:`SHARE_SCHEMA`) that each shard has of *messages* (``COLUMNS``); ticks are left out.

    *whole* shares are the messages themselves, ticks too (those of the first shard).
    """
    order, edges = _deal(messages, shards, cuts or {}, ticks=0 if whole else -1)
    rows = messages if whole else _share(messages)
    dealt = rows.take(pa.array(order))  # once for all shards: what a take costs does not depend on the rows alone
    for shard in range(shards):
        begin, end = int(edges[shard]), int(edges[shard + 1])
        if begin < end:
            yield shard, dealt.slice(begin, end - begin)


def _deal(messages: pa.RecordBatch, shards: int, cuts: Cuts, ticks: int) -> tuple[_Rows, _Rows]:
    """The rows of *messages* by shard, those of a shard in order, and where each shard's begin and end among them.

    The shard *ticks* gets the ticks; -1 is no shard.
    """
    encoded = messages.column("source").dictionary_encode()
    places = [ticks if name == TICK_SOURCE else shard_of(name, shards) for name in encoded.dictionary.to_pylist()]
    small = np.int16 if shards < 1 << 15 else np.int64  # numpy sorts 16 bits by their digits, many times as fast
    place = np.array(places, small)[encoded.indices.to_numpy()]
    for source, times in cuts.items():
        rows = np.flatnonzero(pc.equal(messages.column("source"), source).to_numpy(zero_copy_only=False) & (place >= 0))
        after = np.searchsorted(times, messages.column("event_time").to_numpy()[rows], "right")
        place[rows] = (place[rows] + after) % shards
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(shards + 1))
    return order[edges[0] :], edges - edges[0]


def write_share(share: pa.RecordBatch) -> bytes:
    """*share* as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, share.schema) as writer:
        writer.write_batch(share)
    return bytes(sink.getvalue())


def read_share(data: bytes) -> pa.Table:
    """The share that :func:`write_share` wrote."""
    return pa.ipc.open_stream(data).read_all()


def events_of(shares: Iterable[pa.Table]) -> pa.Table:
    """All of *shares* (:data:`SHARE_SCHEMA`) as one table of ``EVENT_SCHEMA``: the digests become text."""
    rows = pa.concat_tables([SHARE_SCHEMA.empty_table(), *shares]).combine_chunks()
    columns = {name: rows[name] for name in SHARE_SCHEMA.names}
    columns["digest"] = hex_digests(rows["digest"].combine_chunks())
    return pa.table(columns, EVENT_SCHEMA)


def _share(messages: pa.RecordBatch) -> pa.RecordBatch:
    columns = packed_columns(messages)
    return pa.RecordBatch.from_arrays([columns[name] for name in SHARE_SCHEMA.names], schema=SHARE_SCHEMA)
