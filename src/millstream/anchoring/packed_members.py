"""The batches of a packed cut in the journal: one value for all of them, and how they are found by name and place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from millstream.anchoring import journal_tables as t
from millstream.anchoring.packing import PackedMembers
from millstream.core.decoding import prepared


class PackedPlace(msgspec.Struct, frozen=True):
    """A batch of a packed ``cut``: its ``place`` in the order of adding, and where it is (``at``) in ``members``."""

    cut: int
    place: int
    at: int
    members: PackedMembers

    @property
    def batch(self) -> str:
        return self.members.names[self.at]


def packed_values(members: PackedMembers, first: int) -> dict[str, Any]:
    """The columns of ``anchor_packed_members`` that say what *members* are, from place *first* on."""
    starts, counts = members.starts(), np.bincount(members.end_numbers()).tolist()
    return {
        "last": first + len(members.names) - 1,
        "earliest": int(starts.min()),
        "latest": int(starts.max()),
        "ends": msgspec.json.encode(dict(zip(members.ends, counts, strict=True))).decode(),
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
    """The ordinals of those batches of a packed *cut* that have their own row."""
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


_decoder = msgspec.msgpack.Decoder(prepared(PackedMembers))
