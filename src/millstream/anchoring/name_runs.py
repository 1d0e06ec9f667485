"""The index of names: sorted runs of their hashes, in pages; runs are merged when there are many.

A row a name would cost the database several index entries, which lie anywhere in it. Here an anchor adds some pages,
and a look-up reads a page of each run. A hash says only where a name may be: the caller compares the name itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from millstream.core.column_types import LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.sql_rows import among

_Numbers = npt.NDArray[np.uint64]

_PAGE_NAMES = 2048
"""About how many names a page has: names are spread over pages by the first bits of their hashes."""

_PAGES_AT_ONCE = 128
"""Maximum number of pages in memory when many names are looked up."""

_MERGED_AT_ONCE = 1 << 16
"""About how many names of runs that are merged are in memory."""

_ALIKE_BYTES = 64
_FACTORS = np.frombuffer(hashlib.sha512(b"names of batches").digest(), "<u8") | np.uint64(1)
"""Odd numbers that names are hashed with. They are part of what is stored."""

_RUNS_A_TIER = 4
"""Number of runs of about the same size that are merged into one."""


def runs_table(name: str, metadata: sa.MetaData) -> sa.Table:
    """The table of runs, one row a run: of how many names, over how many pages (2 to the power ``bits``)."""
    return sa.Table(
        name,
        metadata,
        sa.Column("run", WHOLE_NUMBER, primary_key=True),
        sa.Column("log", NAME, nullable=False),
        sa.Column("names", sa.BigInteger, nullable=False),
        sa.Column("bits", WHOLE_NUMBER, nullable=False),
        sa.Index(f"{name}_log", "log"),
    )


def pages_table(name: str, metadata: sa.MetaData) -> sa.Table:
    """The table of pages: the names of a run whose hashes begin with the bits of ``page``, as hashes in order and
    places beside them (little-endian uint64)."""
    return sa.Table(
        name,
        metadata,
        sa.Column("run", WHOLE_NUMBER, primary_key=True, autoincrement=False),
        sa.Column("page", WHOLE_NUMBER, primary_key=True, autoincrement=False),
        sa.Column("hashes", LONG_BYTES, nullable=False),
        sa.Column("places", LONG_BYTES, nullable=False),
    )


class NameRuns:
    """The names of batches by log, each with a *place*: a number of 63 bits. What is added is never removed.

    All calls work in the transaction of the *connection* that they are given.
    """

    def __init__(self, runs: sa.Table, pages: sa.Table) -> None:
        self._runs, self._pages = runs, pages

    def add(self, connection: sa.Connection, log: str, names: Sequence[str], places: npt.NDArray[Any]) -> None:
        """Add *names* of *log* with their *places*, as a run; runs that have become many are merged."""
        if not len(names):
            return
        hashes, order = _sorted(_hashes(names))
        self._write(connection, log, len(names), iter([(hashes, places.astype("<u8")[order])]))
        while tier := self._full_tier(connection, log):
            self._merge(connection, log, tier)

    def find(self, connection: sa.Connection, log: str, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Those of *names* that may be known in *log*, each with every place that it may have."""
        if not len(names):
            return
        hashes, order = _sorted(_hashes(names))
        for run, bits in self._rows_of(connection, log):
            own = self._pages.c
            among_pages = among(own.page, np.unique(_page_numbers(hashes, bits)).tolist())
            query = sa.select(own.page, own.hashes).where(own.run == run, among_pages).order_by(own.page)
            found = connection.execute(query)
            while rows := found.fetchmany(_PAGES_AT_ONCE):
                known = np.frombuffer(b"".join(row.hashes for row in rows), "<u8")  # pages follow each other in order
                hits = hashes[_positions(known, hashes) >= 0]
                pages = np.unique(_page_numbers(hits, bits)).tolist()
                for own_hashes, places in self._read(connection, run, pages) if pages else ():
                    at = _positions(hashes, own_hashes)
                    for place, first in zip(places[at >= 0].tolist(), at[at >= 0].tolist(), strict=True):
                        last = int(np.searchsorted(hashes, hashes[first], "right"))
                        yield from ((names[each], place) for each in order[first:last].tolist())

    def _rows_of(self, connection: sa.Connection, log: str) -> list[tuple[int, int]]:
        query = sa.select(self._runs.c.run, self._runs.c.bits).where(self._runs.c.log == log)
        return [(run, bits) for run, bits in connection.execute(query.order_by(self._runs.c.run))]

    def _read(self, connection: sa.Connection, run: int, pages: Sequence[int]) -> Iterator[tuple[_Numbers, _Numbers]]:
        own = self._pages.c
        query = sa.select(own.hashes, own.places).where(own.run == run, among(own.page, pages)).order_by(own.page)
        for hashes, places in connection.execute(query):
            yield np.frombuffer(hashes, "<u8"), np.frombuffer(places, "<u8")

    def _full_tier(self, connection: sa.Connection, log: str) -> list[tuple[int, int, int]]:
        """Runs (number, names, bits) that are to be merged: of about the same size, or none."""
        own, tiers = self._runs.c, dict[int, list[tuple[int, int, int]]]()
        for run, names, bits in connection.execute(sa.select(own.run, own.names, own.bits).where(own.log == log)):
            tier = tiers.setdefault(names.bit_length() // 2, [])
            tier.append((run, names, bits))
            if len(tier) == _RUNS_A_TIER:
                return tier
        return []

    def _merge(self, connection: sa.Connection, log: str, runs: Sequence[tuple[int, int, int]]) -> None:
        """Make one run of *runs*. It is done by ranges of hashes, so that memory holds some thousand names."""
        total = sum(names for _, names, _ in runs)
        shares = min(_bits(total, _MERGED_AT_ONCE), *(bits for *_, bits in runs))
        numbers = [run for run, *_ in runs]

        def merged() -> Iterator[tuple[_Numbers, _Numbers]]:
            for share in range(1 << shares):
                parts = [
                    part
                    for run, _, bits in runs
                    for part in self._read(
                        connection, run, range(share << (bits - shares), (share + 1) << (bits - shares))
                    )
                ]
                hashes, order = _sorted(np.concatenate([np.empty(0, "<u8"), *(own for own, _ in parts)]))
                yield hashes, np.concatenate([np.empty(0, "<u8"), *(places for _, places in parts)])[order]

        self._write(connection, log, total, merged())
        for table in (self._pages, self._runs):
            connection.execute(sa.delete(table).where(table.c.run.in_(numbers)))

    def _write(
        self, connection: sa.Connection, log: str, names: int, parts: Iterator[tuple[_Numbers, _Numbers]]
    ) -> None:
        """Write *parts*, which follow each other in the order of hashes, as a run; no page lies in two of them."""
        bits = _bits(names, _PAGE_NAMES)
        run = connection.execute(sa.insert(self._runs).values(log=log, names=names, bits=bits)).inserted_primary_key[0]  # type: ignore[index]
        for hashes, places in parts:
            numbers, begins = np.unique(_page_numbers(hashes, bits), return_index=True)
            edges = [*begins.tolist(), len(hashes)]
            rows = [
                {"run": run, "page": page, "hashes": hashes[begin:end].tobytes(), "places": places[begin:end].tobytes()}
                for page, begin, end in zip(numbers.tolist(), edges, edges[1:], strict=False)
            ]
            if rows:
                connection.execute(sa.insert(self._pages), rows)


def _bits(names: int, share: int) -> int:
    """How many first bits of a hash part *names* into shares of about so many."""
    return max(0, (names // share).bit_length())


def _page_numbers(hashes: _Numbers, bits: int) -> npt.NDArray[Any]:
    return (hashes >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(hashes), np.int64)


def _hashes(names: Sequence[str]) -> _Numbers:
    """A hash of each of *names*. Most are as long as a SHA-256 in hex: those are hashed together."""
    if (
        names
        and set(map(len, names)) == {_ALIKE_BYTES}
        and len(data := "".join(names).encode()) == _ALIKE_BYTES * len(names)
    ):
        return _mixed(data)
    encoded = [name.encode() for name in names]
    hashes = [
        _mixed(each).tobytes() if len(each) == _ALIKE_BYTES else hashlib.blake2b(each, digest_size=8).digest()
        for each in encoded
    ]
    return np.frombuffer(b"".join(hashes), "<u8")


def _mixed(data: bytes) -> _Numbers:
    """A hash of each 64 of the bytes *data*."""
    found: _Numbers = (np.frombuffer(data, "<u8").reshape(-1, len(_FACTORS)) * _FACTORS).sum(axis=1, dtype=np.uint64)
    found = (found ^ (found >> np.uint64(29))) * _FACTORS[0]  # so that the first bits depend on all others
    return found ^ (found >> np.uint64(32))


def _positions(known: _Numbers, wanted: _Numbers) -> npt.NDArray[np.int64]:
    """The first position of each of *wanted* in *known*, which is sorted and not empty; -1 if it is absent."""
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, -1)


def _sorted(hashes: _Numbers) -> tuple[_Numbers, npt.NDArray[np.int64]]:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order
