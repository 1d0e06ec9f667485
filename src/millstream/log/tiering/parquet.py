"""The messages of a sealed object once more, as a Parquet file for Spark and any other process that reads columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log.block import Block
from millstream.log.tiering.format import TAIL_SIZE, decode_index, index_size
from millstream.log.tiering.sealed_objects import ParquetCopy, SealedObject

PART_BYTES = 4 << 20
_GROUP_ROWS = 131_072


def write_parquet(row: SealedObject, sealed: BinaryIO, target: BinaryIO) -> ParquetCopy:
    """Write the messages of the object *sealed*, whose row is *row*, into *target*: Zstandard, in the order of ids."""
    from pyarrow import parquet

    with parquet.ParquetWriter(target, MESSAGE_SCHEMA, compression="zstd") as writer:
        for table in _groups(row, sealed):
            writer.write_table(table)
    size = target.tell()
    return ParquetCopy(row.parquet_name, size, _sha256(target))


def _groups(row: SealedObject, sealed: BinaryIO) -> Iterator[pa.Table]:
    """The messages in tables of about 131,072 rows."""
    batches: list[pa.RecordBatch] = []
    for batch in _batches(row, sealed):
        batches.append(batch)
        if sum(part.num_rows for part in batches) >= _GROUP_ROWS:
            yield pa.Table.from_batches(batches)
            batches = []
    if batches:
        yield pa.Table.from_batches(batches)


def _batches(row: SealedObject, sealed: BinaryIO) -> Iterator[pa.RecordBatch]:
    sealed.seek(row.size - TAIL_SIZE)
    size = index_size(sealed.read(TAIL_SIZE))
    sealed.seek(row.size - size)
    entries = decode_index(sealed.read(size))
    for offset, length in entries[["offset", "bytes"]].tolist():
        sealed.seek(offset)
        yield Block(sealed.read(length)).decode()


def _sha256(file: BinaryIO) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while part := file.read(PART_BYTES):
        digest.update(part)
    return digest.hexdigest()
