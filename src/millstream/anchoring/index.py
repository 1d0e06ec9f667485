"""The observer's index: what every anchor was found to hold, and where each message lies.

It can be thrown away and built again from the ledger and content-addressed storage. An anchor is one row, and some
pages of hashes by which its batches are found (``name_runs.py``). Its message ids are one sorted array (little-endian
uint64), with the ordinals of their batches beside it; its batches are one value. Only invalid batches have a row each,
as all had in earlier versions: rows of those are read as before.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from millstream.anchoring.content import AnchorContent
from millstream.anchoring.database import insert_rows, metadata
from millstream.anchoring.duplicate_check import BatchMembers, find_duplicates
from millstream.anchoring.errors import RESTORE_LEDGER, LedgerReplacedError
from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.name_runs import NameRuns, pages_table, runs_table
from millstream.core.column_types import EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.decoding import prepared
from millstream.core.sql import make_tables, writing
from millstream.core.sql_rows import among, total

_anchors = sa.Table(
    "anchor_index_anchors",
    metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("hash", EXACT_LONG_TEXT, nullable=False),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("anchor_string", EXACT_LONG_TEXT, nullable=False),
    sa.Column("reason", EXACT_LONG_TEXT),
    sa.Column("log", NAME),
    sa.Column("manifest", EXACT_LONG_TEXT),
    sa.Column("batches", WHOLE_NUMBER, nullable=False, default=0),
    sa.Column("messages", WHOLE_NUMBER, nullable=False, default=0),
    sa.Column("rejects", WHOLE_NUMBER, nullable=False, default=0),
    sa.Column("first_id", sa.BigInteger),
    sa.Column("last_id", sa.BigInteger),
    sa.Column("ids", LONG_BYTES),
    sa.Column("ordinals", LONG_BYTES),
    sa.Column("leaves", LONG_BYTES),
    sa.Column("reject_ids", LONG_BYTES),
    sa.Column("reject_reasons", EXACT_LONG_TEXT),
    sa.Column("members", LONG_BYTES),  # None where each batch has a row
    sa.Index("anchor_index_ranges", "log", "first_id", "last_id"),
)

_batches = sa.Table(
    "anchor_index_batches",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("ordinal", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    sa.Column("log", NAME, nullable=False),
    sa.Column("batch", NAME, nullable=False),
    sa.Column("uri", EXACT_LONG_TEXT, nullable=False),
    sa.Column("offset", WHOLE_NUMBER, nullable=False),
    sa.Column("size", WHOLE_NUMBER, nullable=False),
    sa.Column("reason", EXACT_LONG_TEXT),
    sa.Index("anchor_index_batch", "log", "batch"),
)

_BATCH = tuple(column.name for column in _batches.columns)
_TOLD = [column for column in _anchors.columns if column.name != "members"]

_runs, _pages = runs_table("anchor_index_runs", metadata), pages_table("anchor_index_pages", metadata)

_ORDINAL_BITS = 14
"""A place in the runs of names is the number of an anchor, and in the last bits the ordinal of a batch (10,000)."""


class _Members(msgspec.Struct, frozen=True, array_like=True):
    """The batches of an anchor: names, how many of them lie in each file, offsets and sizes (little-endian uint32)."""

    names: list[str]
    files: list[tuple[str, int]]
    offsets: bytes
    sizes: bytes

    def locations(self, number: int, ordinals: Iterable[int]) -> list[MessageLocation]:
        """The locations of the batches of anchor *number*."""
        offsets, sizes = (np.frombuffer(each, "<u4").tolist() for each in (self.offsets, self.sizes))
        uris = [uri for uri, count in self.files for _ in range(count)]
        return [
            MessageLocation(number, each, self.names[each], uris[each], offsets[each], sizes[each]) for each in ordinals
        ]


class AnchorStatus(msgspec.Struct, frozen=True):
    """The observer's result for one anchor; ``reason`` says why it is invalid as a whole, None where it is not.

    ``batches``, ``messages`` and ``rejects`` count what is valid in it.
    """

    number: int
    hash: str
    time: int
    anchor_string: str
    reason: str | None
    log: str | None
    manifest: str | None
    batches: int
    messages: int
    rejects: int


class MessageLocation(msgspec.Struct, frozen=True):
    """The location of an anchored batch: its anchor, its ordinal there, its file, and its bytes in the file."""

    number: int
    ordinal: int
    batch: str
    uri: str
    offset: int
    size: int
    reason: str | None = None


class IndexTotals(msgspec.Struct, frozen=True):
    """How much has been observed; ``invalid_batches`` lie in anchors that are valid otherwise."""

    anchors: int
    invalid_anchors: int
    batches: int
    invalid_batches: int
    messages: int
    rejects: int


def require_observed(status: AnchorStatus | None, entry: LedgerEntry) -> AnchorStatus:
    """*status*, the result for *entry*. Raises :class:`LedgerReplacedError` where it is that of another entry."""
    if status is None or status.hash != entry.hash:
        raise LedgerReplacedError(
            f"entry {entry.number:,} of the ledger is not the one that was observed: the ledger was rewritten or "
            f"replaced. {RESTORE_LEDGER}"
        )
    return status


_decoder = msgspec.msgpack.Decoder(prepared(_Members))


class AnchorIndex:
    """The index in a database. Thread-safe; *engine* is an SQLAlchemy engine, the tables are made where absent."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        make_tables(engine, metadata, [_anchors, _batches, _runs, _pages])
        self._names = NameRuns(_runs, _pages)
        self._only_runs = False
        self._reject_ranges: dict[str, list[tuple[int, int, int]]] = {}
        self._ranges_lock = threading.Lock()

    def clear(self) -> None:
        """Forget all anchors, to observe the ledger again. Other processes must not use the index now: they keep what
        they know of it."""
        with writing(self._engine) as connection:
            for table in (_anchors, _batches, _runs, _pages):
                connection.execute(sa.delete(table))
        with self._ranges_lock:
            self._reject_ranges.clear()

    def position(self) -> tuple[int, str] | None:
        """Number and hash of the last entry that was observed; None before the first."""
        query = sa.select(_anchors.c.number, _anchors.c.hash).order_by(_anchors.c.number.desc()).limit(1)
        row = self._row(query)
        return None if row is None else (row.number, row.hash)

    def record_invalid(self, entry: LedgerEntry, reason: str) -> None:
        """Write down that *entry* is invalid as a whole, for good."""
        self._record(entry, {"reason": reason})

    def record(self, entry: LedgerEntry, content: AnchorContent, refused: Mapping[int, str]) -> None:
        """Write down what *entry* holds; *refused* gives the reasons of its invalid batches by their ordinal."""
        log, members = content.manifest.log, _members_of(content)
        rows = [(*_row(log, found), refused[found.ordinal]) for found in members.locations(entry.number, refused)]
        values = _anchor_values(content, refused) | {"members": msgspec.msgpack.encode(members)}
        self._record(entry, values, rows, members.names)

    def check_duplicates(self, log: str, members: BatchMembers) -> dict[int, str]:
        """Reasons why some of *members*, anchored now in this order, would be invalid, by ordinal.

        The first one holds: a batch id, or a message, that lies in a valid batch of an anchor or before it in
        *members* makes the later batch invalid.
        """
        ordered = np.sort(members.ids)  # a hundredth of what np.unique of NumPy 2.4 takes
        repeated = bool((ordered[1:] == ordered[:-1]).any())
        messages = self._holders(log, np.unique(ordered) if repeated else ordered)
        batches = self.anchored_batches(log, members.batches)
        distinct = len(set(members.batches)) == len(members.batches)
        if not messages and not batches and distinct and not repeated:
            return {}
        return find_duplicates(members, messages, batches)

    def locate(self, log: str, message_id: int) -> MessageLocation | None:
        """The valid batch that holds the message; None where no anchor has it."""
        for number, stored in self._arrays(log, message_id, message_id):
            at = int(np.searchsorted(stored, message_id))
            if at < len(stored) and stored[at] == message_id:
                row = self._row(sa.select(_anchors.c.ordinals).where(_anchors.c.number == number))
                return row and self._location(number, int(np.frombuffer(row.ordinals, "<u4")[at]))
        return None

    def find_batch(self, log: str, batch: str) -> Sequence[MessageLocation]:
        """Every place where the batch id is anchored, in order; all but the first are invalid."""
        query = _locations().where(_batches.c.log == log, _batches.c.batch == batch)
        found = {(row.number, row.ordinal): MessageLocation(*row) for row in self._rows(query)}
        for location in self._by_name(log, [batch]):
            found.setdefault((location.number, location.ordinal), location)
        return [found[place] for place in sorted(found)]

    def anchored(self, log: str, batches: Mapping[str, Sequence[int]]) -> dict[str, bytes]:
        """Those of *batches* (the message ids by batch id) that are valid in an anchor with exactly these messages: the
        leaf hash there by batch id."""
        numbers, found = self.anchored_batches(log, list(batches)), dict[str, bytes]()
        for number in set(numbers.values()):
            row = self._row(
                sa.select(_anchors.c.ids, _anchors.c.ordinals, _anchors.c.leaves).where(_anchors.c.number == number)
            )
            ids, ordinals = np.frombuffer(row.ids, "<u8"), np.frombuffer(row.ordinals, "<u4")
            if not len(ids):
                continue
            counts = np.bincount(ordinals)
            for name in [each for each, anchor in numbers.items() if anchor == number]:
                wanted = np.array(batches[name], "<u8")
                places = np.searchsorted(ids[:-1], wanted)  # in the sorted ids; the last where all are less
                hits = ordinals[places[ids[places] == wanted]]
                if 0 < len(hits) == len(batches[name]) and (hits == hits[0]).all() and counts[hits[0]] == len(hits):
                    found[name] = row.leaves[32 * hits[0] : 32 * hits[0] + 32]
        return found

    def names(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The ids of all anchored batches by log, those of one anchor at a time, the last anchor first."""
        query = sa.select(_anchors.c.number, _anchors.c.log, _anchors.c.members).order_by(_anchors.c.number.desc())
        with self._engine.connect() as connection:
            for number, log, members in connection.execute(query):
                own = sa.select(_batches.c.batch).where(_batches.c.number == number)
                yield str(log), [] if members is None else _decoder.decode(members).names
                yield str(log), list(connection.scalars(own))

    def reject_reason(self, log: str, message_id: int) -> tuple[int, str] | None:
        """The first anchor whose rejects hold the message, and the reason."""
        columns = (_anchors.c.number, _anchors.c.reject_ids, _anchors.c.reject_reasons)
        query = sa.select(*columns).where(_anchors.c.log == log, _anchors.c.rejects > 0)
        for number, ids, reasons in self._rows(query.order_by(_anchors.c.number)):
            stored = np.frombuffer(ids, "<u8")
            at = int(np.searchsorted(stored, message_id))
            if at < len(stored) and stored[at] == message_id:
                return number, reasons.split("\n")[at]
        return None

    def rejected(self, log: str, message_ids: Sequence[int]) -> Sequence[int]:
        """Those of *message_ids* that the rejects of an anchor of *log* have, in order."""
        wanted, found = np.unique(np.array(message_ids, "<u8")), set[int]()
        with self._engine.connect() as connection:
            for number, first, last in self._ranges_of_rejects(connection, log):
                if np.searchsorted(wanted, np.uint64(first)) == np.searchsorted(wanted, np.uint64(last), "right"):
                    continue
                ids = connection.scalar(sa.select(_anchors.c.reject_ids).where(_anchors.c.number == number))
                found.update(np.intersect1d(np.frombuffer(ids or b"", "<u8"), wanted, assume_unique=True).tolist())
        return sorted(found)

    def _ranges_of_rejects(self, connection: sa.Connection, log: str) -> Sequence[tuple[int, int, int]]:
        """The anchors of *log* that have rejects, each with the first and the last of their ids.

        They are kept, since no anchor changes: only those of new anchors are read.
        """
        with self._ranges_lock:
            known = self._reject_ranges.setdefault(log, [])
            ids = _anchors.c.reject_ids
            ends = [sa.func.substr(ids, at, 8, type_=LONG_BYTES) for at in (1, sa.func.length(ids) - 7)]
            query = sa.select(_anchors.c.number, *ends).where(_anchors.c.log == log, _anchors.c.rejects > 0)
            query = query.where(_anchors.c.number > (known[-1][0] if known else 0)).order_by(_anchors.c.number)
            for number, first, last in connection.execute(query):
                known.append((number, *(int.from_bytes(end, "little") for end in (first, last))))
            return list(known)

    def leaves(self, number: int) -> Sequence[bytes]:
        """The leaf hashes of all batches of an anchor, in order."""
        row = self._row(sa.select(_anchors.c.leaves).where(_anchors.c.number == number))
        blob = b"" if row is None else row.leaves
        return [blob[at : at + 32] for at in range(0, len(blob), 32)]

    def anchor(self, number: int) -> AnchorStatus | None:
        """The result for anchor *number*; None if it has not been observed."""
        row = self._row(_statuses().where(_anchors.c.number == number))
        return None if row is None else AnchorStatus(*row)

    def refused(self, number: int) -> dict[str, str]:
        """The invalid batches of an anchor that is valid otherwise: reason by batch id."""
        return {location.batch: location.reason for location in self._refused(number) if location.reason is not None}

    def invalid(self) -> Iterator[tuple[int, str | None, str]]:
        """All that is invalid, in order: anchor number, batch id (None for a whole anchor), reason."""
        query = _statuses().where(_anchors.c.reason.is_not(None)).order_by(_anchors.c.number)
        whole = [(row.number, None, row.reason) for row in self._rows(query)]
        single = [(found.number, found.batch, found.reason or "") for found in self._refused()]
        yield from sorted([*whole, *single], key=lambda item: item[0])

    def totals(self) -> IndexTotals:
        """How much has been observed."""
        count, column = sa.func.count, _anchors.c
        sums = [total(each) for each in (column.batches, column.messages, column.rejects)]
        anchors = self._rows(sa.select(count(column.number), count(column.reason), *sums))[0]
        refused = self._rows(sa.select(count(_batches.c.reason)))[0][0]
        return IndexTotals(anchors[0], anchors[1], anchors[2], refused, anchors[3], anchors[4])

    def anchor_count(self) -> int:
        """How many anchors were observed."""
        return int(self._rows(sa.select(sa.func.count()).select_from(_anchors))[0][0])

    def messages_by_log(self) -> Mapping[str, tuple[int, int]]:
        """The messages in valid batches, and the rejected ones, of each log that has anchors."""
        sums = [total(_anchors.c.messages), total(_anchors.c.rejects)]
        query = sa.select(_anchors.c.log, *sums).where(_anchors.c.log.is_not(None)).group_by(_anchors.c.log)
        return {log: (int(messages), int(rejects)) for log, messages, rejects in self._rows(query)}

    def rows(self, number: int) -> tuple[Sequence[Any], Sequence[Any]]:
        """All that is stored of an anchor (its row; a row for each batch that is found by its name), to compare two
        indexes. Of a reason only whether there is one: releases may word it differently."""
        own = self._rows(sa.select(*_TOLD).where(_anchors.c.number == number))
        batches = sa.select(_batches).where(_batches.c.number == number)
        rows = {row.ordinal: _comparable(row) for row in self._rows(batches)}
        if members := self._members(number):
            log = own[0].log
            for found in self._by_name(log, members.names):
                if found.number == number:
                    rows.setdefault(found.ordinal, (*_row(log, found), False))
        return [_comparable(row) for row in own], [rows[ordinal] for ordinal in sorted(rows)]

    def numbers(self) -> Sequence[int]:
        """The numbers of all anchors that any row speaks of, in order."""
        query = sa.union(sa.select(_anchors.c.number), sa.select(_batches.c.number))
        return sorted(row[0] for row in self._rows(query))

    def _record(
        self,
        entry: LedgerEntry,
        values: Mapping[str, Any],
        refused: Sequence[tuple[Any, ...]] = (),
        names: Sequence[str] = (),
    ) -> None:
        own = {f: getattr(entry, f) for f in ("number", "hash", "time", "anchor_string")}
        with writing(self._engine) as connection:
            last = connection.execute(sa.select(sa.func.max(_anchors.c.number))).scalar_one()
            if (last or 0) >= entry.number:
                return  # another observer of the same database was faster
            connection.execute(_anchors.insert(), [{**own, **values}])
            insert_rows(connection, _batches, _BATCH, refused)
            places = (entry.number << _ORDINAL_BITS) + np.arange(len(names))
            self._names.add(connection, str(values.get("log")), names, places)

    def _arrays(self, log: str, low: int, high: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """The anchors that may hold ids *low* to *high*, and their ids; one anchor is in memory at a time: those of
        an imported log may all span all ids."""
        columns = _anchors.c
        chosen = sa.and_(columns.log == log, columns.first_id <= high, columns.last_id >= low)
        numbers = [row.number for row in self._rows(sa.select(columns.number).where(chosen).order_by(columns.number))]
        for number in numbers:
            row = self._row(sa.select(columns.ids).where(columns.number == number))
            if row is not None:
                yield number, np.frombuffer(row.ids, "<u8")

    def _holders(self, log: str, ids: np.ndarray[Any, Any]) -> dict[int, int]:
        """The anchors that hold some of *ids* (sorted) already, by id."""
        found: dict[int, int] = {}
        if len(ids):
            for number, stored in self._arrays(log, int(ids[0]), int(ids[-1])):
                hits = np.intersect1d(_within(stored, ids), _within(ids, stored), assume_unique=True)
                found.update(dict.fromkeys(hits.tolist(), number))
        return found

    def anchored_batches(self, log: str, names: Sequence[str]) -> dict[str, int]:
        """The anchors in which those of the batches *names* are valid that lie in one, by batch id."""
        column = _batches.c
        places = self._by_name(log, names)
        refused = {
            (row.number, row.ordinal) for number in {each.number for each in places} for row in self._refused(number)
        }
        found = {each.batch: each.number for each in places if (each.number, each.ordinal) not in refused}
        if self._has_rows():
            query = sa.select(column.batch, column.number).where(column.log == log, among(column.batch, names))
            found |= {row.batch: row.number for row in self._rows(query.where(column.reason.is_(None)))}
        return found

    def _has_rows(self) -> bool:
        """Whether there are anchors of which each batch has a row."""
        if not self._only_runs:  # none comes later: this version writes none
            query = sa.select(_anchors.c.number).where(_anchors.c.members.is_(None), _anchors.c.reason.is_(None))
            self._only_runs = self._row(query.limit(1)) is None
        return not self._only_runs

    def _by_name(self, log: str, names: Sequence[str]) -> list[MessageLocation]:
        """The places of batches with *names*, valid or not, in anchors whose batches have no rows."""
        with self._engine.connect() as connection:
            hits = sorted((place, name) for name, place in self._names.find(connection, log, names))
        found = list[MessageLocation]()
        for number, own in itertools.groupby(hits, key=lambda hit: hit[0] >> _ORDINAL_BITS):
            if members := self._members(number):
                ordinals = [(place & ((1 << _ORDINAL_BITS) - 1), name) for place, name in own]
                found += members.locations(number, [each for each, name in ordinals if members.names[each] == name])
        return found

    def _members(self, number: int) -> _Members | None:
        row = self._row(sa.select(_anchors.c.members).where(_anchors.c.number == number))
        return None if row is None or row.members is None else _decoder.decode(row.members)

    def _location(self, number: int, ordinal: int) -> MessageLocation | None:
        row = self._row(_locations().where(_batches.c.number == number, _batches.c.ordinal == ordinal))
        if row is not None:
            return MessageLocation(*row)
        members = self._members(number)
        return members.locations(number, [ordinal])[0] if members else None

    def _refused(self, number: int | None = None) -> Sequence[MessageLocation]:
        query = _locations().where(_batches.c.reason.is_not(None))
        if number is not None:
            query = query.where(_batches.c.number == number)
        return [MessageLocation(*row) for row in self._rows(query.order_by(_batches.c.number, _batches.c.ordinal))]

    def _rows(self, query: Any) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    def _row(self, query: Any) -> Any:
        return next(iter(self._rows(query)), None)


def _within(ids: np.ndarray[Any, Any], span: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Those of *ids* between the ends of *span*; both are sorted and not empty."""
    begin, end = np.searchsorted(ids, span[0]), np.searchsorted(ids, span[-1], "right")
    return ids[begin:end]


def _statuses() -> sa.Select[Any]:
    return sa.select(*[_anchors.c[name] for name in AnchorStatus.__struct_fields__])


def _locations() -> sa.Select[Any]:
    return sa.select(*[_batches.c[name] for name in MessageLocation.__struct_fields__])


def _comparable(row: Any) -> tuple[Any, ...]:
    """*row*, with whether it has a reason in place of the reason."""
    return tuple({**row._mapping, "reason": row.reason is not None}.values())


def _row(log: str, location: MessageLocation) -> tuple[Any, ...]:
    """*location* as columns of a row of a batch, without the reason."""
    number, ordinal, *rest, _ = msgspec.structs.astuple(location)
    return (number, ordinal, log, *rest)


def _members_of(content: AnchorContent) -> _Members:
    batches = content.batches
    files = [(file.uri, file.batches) for file in content.manifest.files]
    return _Members(batches.names, files, batches.offsets, batches.sizes)


def _anchor_values(content: AnchorContent, refused: Mapping[int, str]) -> dict[str, Any]:
    members = content.batches.members
    ids, ordinals = members.ids, members.ordinals
    if refused:
        valid = np.isin(ordinals, list(refused), invert=True)
        ids, ordinals = ids[valid], ordinals[valid]
    order = np.argsort(ids, kind="stable")
    ids, ordinals = ids[order], ordinals[order]
    return {
        "log": content.manifest.log,
        "manifest": content.manifest_cid,
        "batches": len(members.batches) - len(refused),
        "messages": len(ids),
        "rejects": len(content.rejects),
        "first_id": int(ids[0]) if len(ids) else None,
        "last_id": int(ids[-1]) if len(ids) else None,
        "ids": ids.tobytes(),
        "ordinals": ordinals.tobytes(),
        "leaves": content.batches.leaves,
        "reject_ids": np.array([reject.rejected for reject in content.rejects], "<u8").tobytes(),
        "reject_reasons": "\n".join(reject.reason for reject in content.rejects),
    }
