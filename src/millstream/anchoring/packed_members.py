"""The batches of a packed cut in the journal: one value for all of them, and how they are found by name and place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlalchemy as sa

from millstream.anchoring import journal_tables as t
from millstream.anchoring.packing import PackedBatch

_ROOT_BYTES = 32


class PackedMembers(msgspec.Struct, frozen=True, array_like=True):
    """The batches of a packed cut in order: names, sources and reasons of their ends by number, and of each batch the
    numbers (little-endian uint32), times (int64), bytes in a file (uint32) and Merkle root."""

    names: list[str]
    sources: list[str]
    ends: list[str]
    source_of: bytes
    end_of: bytes
    start: bytes
    end: bytes
    size: bytes
    root: bytes

    @classmethod
    def of(cls, batches: Sequence[PackedBatch]) -> PackedMembers:
        """The members that *batches* are."""
        sources, source_of = _numbered([batch.source for batch in batches])
        ends, end_of = _numbered([batch.ended for batch in batches])
        return cls(
            [batch.read.batch for batch in batches],
            sources,
            ends,
            source_of,
            end_of,
            np.array([batch.start for batch in batches], "<i8").tobytes(),
            np.array([batch.end for batch in batches], "<i8").tobytes(),
            np.array([batch.read.size for batch in batches], "<u4").tobytes(),
            bytes.fromhex("".join(batch.root for batch in batches)),
        )

    def root_of(self, place: int) -> str:
        """The Merkle root (hex) of the batch at *place* from 0 on."""
        return self.root[place * _ROOT_BYTES : (place + 1) * _ROOT_BYTES].hex()

    def starts(self) -> npt.NDArray[np.int64]:
        """When each batch begins, in microseconds."""
        return np.frombuffer(self.start, "<i8")

    def end_numbers(self) -> npt.NDArray[np.uint32]:
        """Why each batch ended, as a number in ``ends``."""
        return np.frombuffer(self.end_of, "<u4")

    def row(self, place: int) -> dict[str, Any]:
        """The batch at *place* from 0 on, as columns of ``anchor_batches``."""
        return {
            "batch": self.names[place],
            "source": self.sources[int(np.frombuffer(self.source_of, "<u4")[place])],
            "start": int(self.starts()[place]),
            "size": int(np.frombuffer(self.size, "<u4")[place]),
            "root": self.root_of(place),
            "end": int(np.frombuffer(self.end, "<i8")[place]),
            "ended": self.ends[int(self.end_numbers()[place])],
        }


class PackedPlace(msgspec.Struct, frozen=True):
    """A batch of a packed ``cut``: its ``place`` in the order of adding, and where it is (``at``) in ``members``."""

    cut: int
    place: int
    at: int
    members: PackedMembers

    @property
    def batch(self) -> str:
        return self.members.names[self.at]


def packed_values(batches: Sequence[PackedBatch], first: int) -> dict[str, Any]:
    """The columns of ``anchor_packed_members`` that say what *batches* are, from place *first* on."""
    members = PackedMembers.of(batches)
    starts = members.starts()
    return {
        "last": first + len(batches) - 1,
        "earliest": int(starts.min()),
        "latest": int(starts.max()),
        "ends": msgspec.json.encode(Counter(batch.ended for batch in batches)).decode(),
        "members": msgspec.msgpack.encode(members),
    }


def packed_members(
    connection: sa.Connection, *chosen: sa.ColumnElement[bool], limit: int | None = None
) -> Iterator[tuple[Any, PackedMembers]]:
    """The row (cut, log, first) and the members of each of the *chosen* packed cuts, the last one first."""
    own = t.members.c
    query = sa.select(own.cut, own.log, own.first, own.members).where(*chosen)
    for row in connection.execute(query.order_by(own.first.desc()).limit(limit)):
        yield row, _decoder.decode(row.members)


def places_with_rows(connection: sa.Connection, cut: int) -> list[int]:
    """The places of those batches of a packed *cut* that have a row of their own."""
    return list(connection.execute(sa.select(t.batches.c.seq).where(t.batches.c.cut == cut)).scalars())


def packed_by_name(connection: sa.Connection, log: str, names: Sequence[str]) -> Iterator[PackedPlace]:
    """Those batches of *log* among *names* that lie in packed cuts."""
    rest = sorted(set(t.NAMES.find(connection, log, names)), key=lambda hit: hit[1])
    while rest:
        ((row, members),) = packed_members(connection, t.members.c.first <= rest[0][1], limit=1)
        inside = [hit for hit in rest if hit[1] < row.first + len(members.names)]
        rest = rest[len(inside) :]
        for name, place in inside:
            if members.names[place - row.first] == name:
                yield PackedPlace(row.cut, place, place - row.first, members)


def _numbered(values: Sequence[str]) -> tuple[list[str], bytes]:
    """The different *values*, and the number of each of them among those."""
    encoded = pa.array(values, pa.string()).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype("<u4").tobytes()


_decoder = msgspec.msgpack.Decoder(PackedMembers)
