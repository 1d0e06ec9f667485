"""Reports of a node whose database is on a server: rows that name content-addressed files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec
import sqlalchemy as sa

from millstream.core.cached import locked_cached_property
from millstream.core.column_types import LONG_BYTES, NAME, exact_text
from millstream.core.errors import MillstreamError
from millstream.core.sql import make_tables_once, writing
from millstream.core.sql_rows import insert_new
from millstream.mill.errors import ReportError
from millstream.mill.merge_join import groups
from millstream.mill.reports.archive import ReportHead, StoredReport, decode_report
from millstream.mill.reports.report import IntegrityReport, encode_report

metadata = sa.MetaData()

_reports = sa.Table(
    "mill_reports",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cid", exact_text(100), nullable=False),
    sa.Column("lines", LONG_BYTES),
    sqlite_with_rowid=False,
)
"""The reports: the CID of the canonical JSON, which the ledger of reports names too, and those of the parts of the
table, one a line."""

_unchained = sa.Table(
    "mill_unchained_reports",
    metadata,
    sa.Column("cid", exact_text(100), primary_key=True),
    sqlite_with_rowid=False,
)
"""The reports outside the chains. Reports of the chains have their files in the same storage: a file there does not say
that its report is not one of a chain whose row was removed."""

_PART = 8 << 20
"""Bytes of a part of a table of lines."""

_MOST_BYTES = 1 << 30
"""The most bytes of a report that is read."""

_SPACES = 500
"""Spaces whose last reports are found by one statement."""


class Blobs(Protocol):
    """Content-addressed storage."""

    def put(self, data: bytes) -> str:
        """Store *data* durably and return its CID."""
        ...

    def get(self, cid: str, limit: int) -> bytes:
        """The bytes of *cid*, checked against it; at most *limit* of them."""
        ...


class ReportTable:
    """A :class:`~millstream.mill.reports.archive.ReportArchive`: rows in the database of *engine*, content in what
    *open_blobs* opens when it is first needed, and whose errors are raised. Several processes may add reports.
    """

    def __init__(self, engine: sa.Engine, open_blobs: Callable[[], Blobs]) -> None:
        make_tables_once(engine, metadata)
        self._engine, self._open_blobs = engine, open_blobs

    @locked_cached_property
    def _blobs(self) -> Blobs:
        return self._open_blobs()

    def save(self, report: IntegrityReport, tsv: Iterable[str] | None = None) -> IntegrityReport:
        parts = None if tsv is None else self._put_lines(line.encode() for line in tsv)
        while True:  # until no other process has added one meanwhile
            last = self.last(report.store, report.space)
            previous = None if last is None else decode_report(last).sha256
            chained = msgspec.structs.replace(report, previous=previous)
            data = encode_report(chained)
            if len(data) > _MOST_BYTES:  # with it, no later report could be chained
                raise ReportError(
                    f"the report on {report.space} in {report.store} is too large to be kept: {len(data):,} bytes"
                )
            row = {"store": report.store, "space": report.space, "number": 1 if last is None else last.number + 1}
            if self._insert({**row, "cid": self._blobs.put(data), "lines": parts}):
                return chained

    def latest(self, store: str, space: str) -> IntegrityReport | None:
        last = self.last(store, space)
        return None if last is None else decode_report(last)

    def last(self, store: str, space: str) -> StoredReport | None:
        """The last report of a space as it is kept; None where there is none."""
        query = sa.select(_reports.c.number, _reports.c.cid).where(_of(store, space))
        with self._engine.connect() as connection:
            row = connection.execute(query.order_by(_reports.c.number.desc()).limit(1)).first()
        return None if row is None else self._read(store, space, row.number, row.cid)

    def spaces(self) -> Sequence[tuple[str, str]]:
        query = sa.select(_reports.c.store, _reports.c.space).distinct()
        with self._engine.connect() as connection:
            return sorted((row.store, row.space) for row in connection.execute(query))

    def heads(self, spaces: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], ReportHead]:
        row, found = _reports.c, dict[tuple[str, str], ReportHead]()
        for some in groups(spaces, _SPACES):
            keys = set(some)
            last = (
                sa.select(row.store, row.space, sa.func.max(row.number).label("number"))
                .where(row.store.in_({store for store, _ in keys}), row.space.in_({space for _, space in keys}))
                .group_by(row.store, row.space)
                .subquery()
            )
            is_last = sa.and_(*(row[name] == last.c[name] for name in ("store", "space", "number")))
            query = sa.select(row.store, row.space, row.number, row.cid).select_from(_reports.join(last, is_last))
            with self._engine.connect() as connection:
                for store, space, number, cid in connection.execute(query):
                    if (store, space) in keys:  # and not the store of one with the name of another
                        found[store, space] = ReportHead(number, partial(self._decode, store, space, number, cid))
        return found

    def stored(self, store: str, space: str) -> Iterator[StoredReport]:
        query = sa.select(_reports.c.number, _reports.c.cid).where(_of(store, space)).order_by(_reports.c.number)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return (self._read(store, space, row.number, row.cid) for row in rows)

    def lines(self, store: str, space: str, number: int | None = None) -> Iterator[bytes] | None:
        query = sa.select(_reports.c.lines).where(_of(store, space))
        if number is not None:
            query = query.where(_reports.c.number == number)
        with self._engine.connect() as connection:
            parts = connection.scalar(query.order_by(_reports.c.number.desc()).limit(1))
        if parts is None:
            return None
        return (self._blobs.get(cid, _PART * 2) for cid in bytes(parts).decode().split())

    def add(self, store: str, space: str, report: StoredReport, lines: Iterable[bytes] | None) -> None:
        if not self.insert(store, space, report, lines):
            raise ReportError(
                f"another process added report {report.number} on {space} in {store} during the copy. Nothing was "
                "overwritten: repeat the command"
            )

    def insert(self, store: str, space: str, report: StoredReport, lines: Iterable[bytes] | None) -> bool:
        """:meth:`add`; False where another report has its number."""
        parts = None if lines is None else self._put_lines(lines)
        row = {"store": store, "space": space, "number": report.number}
        return self._insert({**row, "cid": self._blobs.put(report.data), "lines": parts})

    def unchained(self) -> Iterator[StoredReport]:
        with self._engine.connect() as connection:
            cids = connection.scalars(sa.select(_unchained.c.cid).order_by(_unchained.c.cid)).all()
        return (self._read_file(cid, f"report {cid}", 0) for cid in cids)

    def add_unchained(self, data: bytes) -> None:
        cid = self._blobs.put(data)
        with writing(self._engine) as connection:
            connection.execute(insert_new(connection, _unchained), {"cid": cid})

    def cids(self, store: str, space: str) -> frozenset[str]:
        """The CIDs of the reports of a space, and of all reports outside the chains."""
        chained = sa.select(_reports.c.cid).where(_of(store, space))
        with self._engine.connect() as connection:
            return frozenset(connection.scalars(chained)).union(connection.scalars(sa.select(_unchained.c.cid)))

    def known(self, reports: Mapping[tuple[str, str, int], str]) -> frozenset[str]:
        """Those CIDs of *reports* (by store, space and number) that are there, or outside the chains."""
        place, found = sa.tuple_(_reports.c.store, _reports.c.space, _reports.c.number), set[str]()
        for some in groups(list(reports), _SPACES):
            chained = sa.select(_reports.c.cid).where(place.in_(some))
            unchained = sa.select(_unchained.c.cid).where(_unchained.c.cid.in_([reports[key] for key in some]))
            with self._engine.connect() as connection:
                found.update(connection.scalars(chained), connection.scalars(unchained))
        return frozenset(found.intersection(reports.values()))

    def _insert(self, row: dict[str, object]) -> bool:
        """Insert *row*, unless it is there; False where another report has its number."""
        same = sa.and_(*(_reports.c[name] == row[name] for name in ("store", "space", "number")))
        with writing(self._engine) as connection:
            if (cid := connection.scalar(sa.select(_reports.c.cid).where(same))) is not None:
                return bool(cid == row["cid"])
            connection.execute(sa.insert(_reports).values(row))
            connection.execute(sa.delete(_unchained).where(_unchained.c.cid == row["cid"]))
        return True

    def _decode(self, store: str, space: str, number: int, cid: str) -> IntegrityReport:
        return decode_report(self._read(store, space, number, cid))

    def _read(self, store: str, space: str, number: int, cid: str) -> StoredReport:
        return self._read_file(cid, f"report {number} on {space} in {store}", number)

    def _read_file(self, cid: str, place: str, number: int) -> StoredReport:
        try:
            return StoredReport(number, self._blobs.get(cid, _MOST_BYTES), place)
        except MillstreamError as error:
            if error.transient:
                raise
            raise ReportError(f"{place} cannot be read: {error}") from error

    def _put_lines(self, lines: Iterable[bytes]) -> bytes:
        """The CIDs of the parts of *lines*, one a line."""
        cids, part = list[str](), bytearray()
        for line in lines:
            part += line
            if len(part) >= _PART:
                cids.append(self._blobs.put(bytes(part)))
                part.clear()
        if part:
            cids.append(self._blobs.put(bytes(part)))
        return "\n".join(cids).encode()


def _of(store: str, space: str) -> sa.ColumnElement[bool]:
    return sa.and_(_reports.c.store == store, _reports.c.space == space)
