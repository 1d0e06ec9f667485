"""Anchored operations by DID: the observer's table, and the state of a DID computed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.anchoring.ledger import GENESIS, LedgerEntry
from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.anchoring.registry.errors import UnreadableAnchorError
from millstream.anchoring.registry.operation_id import has_one_id, known_ids
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.protocol_versions import ProtocolVersions
from millstream.anchoring.registry.states import OperationEffect, OperationState, OperationStatus, ParsedOperation
from millstream.anchoring.registry.unpublished import UnpublishedOperation, follow, unpublished_operations, without
from millstream.anchoring.sidetree import (
    AnchoredOperation,
    Chain,
    DidState,
    Operation,
    OperationBatch,
    RequestError,
    chain_of,
    parse_did,
    resolution,
    resolve,
)
from millstream.anchoring.sidetree.encoding import canonical
from millstream.anchoring.sidetree.operations import stored_operation
from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.decoding import prepared
from millstream.core.sql_rows import DriverQuery, among, insert_rows, json_array

_decoder = msgspec.json.Decoder(prepared(dict[str, Any]))
_CHUNK = 5_000
NONE_ACCEPTED: Mapping[str, ParsedOperation] = {}
_pending = t.pending_anchors
_LATE_COUNTS: Sequence[sa.ColumnElement[Any]] = (
    sa.func.count(_pending.c.resolved_at),
    sa.func.count(sa.case((sa.and_(_pending.c.resolved_at.is_(None), t.anchors.c.operations > 0), 1))),
)
_LATE = DriverQuery(
    sa.select(*_LATE_COUNTS).select_from(_pending.join(t.anchors, t.anchors.c.number == _pending.c.number))
)
_ANCHORED = DriverQuery(
    sa.select(*[t.history.c[name] for name in ("suffix", "number", "place", "request")])
    .where(
        among(t.history.c.suffix, sa.bindparam("suffixes", type_=sa.Text)),
        t.history.c.number > sa.bindparam("after"),
    )
    .order_by(t.history.c.number, t.history.c.place)
)
_FIRST_RETRY, _LAST_RETRY = 10 * MICROSECONDS, 3600 * MICROSECONDS


class AnchorRecord(msgspec.Struct, frozen=True):
    """An observed anchor: how many operations were read from it, and what was wrong with it, if anything was."""

    number: int
    hash: str
    operations: int
    fault: str | None


class OperationHistory:
    """The anchored operations of every DID, in *database*. Thread-safe.

    Operations that are not anchored count for :meth:`resolve` until *unpublished* seconds after they were accepted (0:
    never): a DID that is not anchored resolves from them, that of an anchored one lists them. With
    *apply_unpublished* they change the document of an anchored DID as well.
    """

    def __init__(
        self,
        database: RegistryDatabase,
        store: OperationStore,
        versions: ProtocolVersions,
        *,
        unpublished: float = 0.0,
        apply_unpublished: bool = False,
    ) -> None:
        self._database = database
        self._store = store
        self._versions = versions
        self._unpublished_for = unpublished
        self._apply_unpublished = apply_unpublished

    @property
    def clock(self) -> Clock:
        """The clock of the database."""
        return self._database.clock

    def position(self) -> tuple[int, str]:
        """The last ledger entry that was observed, and its hash; 0 before the first."""
        query = sa.select(t.anchors.c.number, t.anchors.c.hash).order_by(t.anchors.c.number.desc()).limit(1)
        row = self._database.query(lambda c: c.execute(query).first())
        return (row.number, row.hash) if row else (0, GENESIS)

    def anchor(self, number: int) -> AnchorRecord | None:
        """The record of ledger entry *number*; None if it was not observed yet."""
        query = sa.select(*[t.anchors.c[name] for name in AnchorRecord.__struct_fields__])
        row = self._database.query(lambda c: c.execute(query.where(t.anchors.c.number == number)).first())
        return AnchorRecord(*row) if row else None

    def clear(self) -> None:
        """Forget all entries, to observe the ledger again; operations that are recorded as anchored are accepted again.

        Other processes must not use the registry now: they keep what they know of it.
        """

        def transaction(connection: sa.Connection, now: int) -> None:
            self._store.accept_anchored_again(connection, now)
            for table in (t.history, _pending, t.anchors):
                connection.execute(sa.delete(table))

        self._database.write(transaction)

    def counts(self) -> Mapping[int, int]:
        """How many operations are recorded under each ledger entry; entries with none are there if they were
        observed."""
        observed = {row.number: 0 for row in self._database.rows(sa.select(t.anchors.c.number))}
        query = sa.select(t.history.c.number, sa.func.count().label("operations")).group_by(t.history.c.number)
        return observed | {row.number: int(row.operations) for row in self._database.rows(query)}

    def rows(self, number: int, suffixes: Sequence[str]) -> Sequence[tuple[str, int, bytes]]:
        """Suffix, place and request of the operations on *suffixes* under ledger entry *number*, by place."""
        found = list[tuple[str, int, bytes]]()
        for start in range(0, len(suffixes), _CHUNK):
            chosen = t.history.c.suffix.in_(suffixes[start : start + _CHUNK])
            query = sa.select(t.history.c.suffix, t.history.c.place, t.history.c.request)
            rows = self._database.rows(query.where(chosen, t.history.c.number == number))
            found += [(row.suffix, row.place, row.request) for row in rows]
        return sorted(found, key=lambda row: row[1])

    def record(
        self,
        entry: LedgerEntry,
        batch: OperationBatch | None,
        fault: str | None,
        *,
        accepted: Mapping[str, ParsedOperation] = NONE_ACCEPTED,
    ) -> bool:
        """Ledger *entry* holds *batch*, or nothing that readers take. All of it is recorded, or none.

        *accepted* are operations of this registry by suffix: one of *batch* that is the same is recorded as it was
        stored. False where another instance has recorded the entry already.
        """
        found = _ObservedOperations(entry, batch, fault, accepted)

        def transaction(connection: sa.Connection, now: int) -> bool:
            if not _insert_anchor(connection, found.anchor):
                return False
            self._insert_operations(connection, now, found)
            return True

        return self._write_once(transaction)

    def postpone(self, entry: LedgerEntry, reason: str, core: OperationBatch | None = None) -> bool:
        """The files of *entry* are nowhere now: it is passed over, and read again later.

        The operations of *core* count until then. False where another instance has recorded it already.
        """
        found = _ObservedOperations(entry, core, reason)

        def transaction(connection: sa.Connection, now: int) -> bool:
            if not _insert_anchor(connection, found.anchor):
                return False
            row = {"number": entry.number, "entry": msgspec.json.encode(entry), "tries": 0}
            connection.execute(sa.insert(_pending).values(**row, next_at=now + _FIRST_RETRY))
            _insert_history(connection, found)
            return True

        return self._write_once(transaction)

    def record_late(self, entry: LedgerEntry, batch: OperationBatch | None, fault: str | None) -> bool:
        """As :meth:`record`, for an entry that was postponed; False where another instance has recorded it."""
        found = _ObservedOperations(entry, batch, fault)
        waiting = sa.and_(_pending.c.number == entry.number, _pending.c.resolved_at.is_(None))

        def transaction(connection: sa.Connection, now: int) -> bool:
            if not connection.execute(sa.update(_pending).where(waiting).values(resolved_at=now)).rowcount:
                return False
            _delete_history(connection, entry.number)
            connection.execute(sa.update(t.anchors).where(t.anchors.c.number == entry.number).values(found.anchor))
            self._insert_operations(connection, now, found)
            return True

        return self._database.write(transaction)

    def retry_later(self, entry: LedgerEntry, core: OperationBatch | None = None) -> None:
        """The files of the postponed *entry* are still nowhere; the operations of *core* count from now on."""
        anchor, mine = t.anchors.c.number == entry.number, _pending.c.number == entry.number

        def transaction(connection: sa.Connection, now: int) -> None:
            tries = int(connection.scalar(sa.select(_pending.c.tries).where(mine)) or 0) + 1
            delay = min(_FIRST_RETRY * 2 ** min(tries, 20), _LAST_RETRY)
            change = sa.update(_pending).where(mine, _pending.c.resolved_at.is_(None))
            waits = connection.execute(change.values(tries=tries, next_at=now + delay)).rowcount
            if not waits or core is None or not core.operations:
                return
            found = _ObservedOperations(entry, core, None)
            fresh = sa.update(t.anchors).where(anchor, t.anchors.c.operations == 0)
            if connection.execute(fresh.values(operations=len(found.rows))).rowcount:
                _insert_history(connection, found)

        self._database.write(transaction)

    def postponed(self, *, due: bool = False, limit: int = 1_000) -> Sequence[LedgerEntry]:
        """The entries whose files were nowhere yet; with *due* those that are to be retried."""

        def query(connection: sa.Connection, now: int) -> Sequence[LedgerEntry]:
            chosen: sa.ColumnElement[bool] = _pending.c.resolved_at.is_(None)
            if due:
                chosen = sa.and_(chosen, _pending.c.next_at <= now)
            rows = connection.execute(
                sa.select(_pending.c.entry).where(chosen).order_by(_pending.c.number).limit(limit)
            )
            return [msgspec.json.decode(row.entry, type=prepared(LedgerEntry)) for row in rows]

        return self._database.read(query)

    def is_postponed(self, number: int) -> bool:
        """Whether the files of ledger entry *number* were nowhere yet."""
        waiting = sa.and_(_pending.c.number == number, _pending.c.resolved_at.is_(None))
        query = sa.select(_pending.c.number).where(waiting)
        return self._database.query(lambda c: c.execute(query).first() is not None)

    def postponed_count(self) -> int:
        """How many entries wait for their files."""
        query = sa.select(sa.func.count()).select_from(_pending).where(_pending.c.resolved_at.is_(None))
        return int(self._database.query(lambda c: c.scalar(query)) or 0)

    def late_entries(self, connection: sa.Connection) -> tuple[int, int]:
        """How many entries got all their files late, and how many count without their provisional files.

        One of the two changes whenever operations are recorded before those of a later entry.
        """
        ((resolved, partial),) = _LATE.rows(connection)
        return int(resolved), int(partial)

    def _insert_operations(self, connection: sa.Connection, now: int, found: _ObservedOperations) -> None:
        _insert_history(connection, found)
        if found.rows:
            self._store.observed(connection, now, found.anchor["number"], found.places, found.ids)

    def _write_once(self, transaction: Callable[[sa.Connection, int], bool]) -> bool:
        try:
            return self._database.write(transaction)
        except sa.exc.IntegrityError:  # both looked before either wrote
            return False

    def empty_chain(self) -> Chain:
        """The chain, without documents, of a DID of which nothing was observed."""
        return Chain(self._versions.latest.profile, documents=False)

    def anchored(
        self, connection: sa.Connection, suffixes: Sequence[str], *, after: int = -1
    ) -> Iterator[tuple[str, AnchoredOperation]]:
        """The anchored operations on *suffixes* above ledger entry *after*, in ledger order for each."""
        for start in range(0, len(suffixes), _CHUNK):
            asked = json_array(suffixes[start : start + _CHUNK])
            for suffix, number, place, request in _ANCHORED.rows(connection, suffixes=asked, after=after):
                yield suffix, AnchoredOperation(number, place, stored_operation(request, suffix))

    def with_effects(self, statuses: Sequence[OperationStatus]) -> Sequence[OperationStatus]:
        """*statuses*, and for each observed one what it did to its DID.

        An operation without an effect may still have one later, when another one is anchored that leads to it.
        """
        chains = dict[str, tuple[Chain, Mapping[tuple[int, int], AnchoredOperation]]]()
        found = list[OperationStatus]()
        for status in statuses:
            if status.state != OperationState.OBSERVED or status.anchor is None or status.index is None:
                found.append(status)
                continue
            if status.suffix not in chains:
                operations = self.operations(status.suffix)
                chain = chain_of(operations, self._versions.latest.profile, documents=False)
                chains[status.suffix] = chain, {(each.number, each.index): each for each in operations}
            chain, places = chains[status.suffix]
            effect = chain.effect(places[status.anchor, status.index])
            said = OperationEffect.APPLIED if effect.applied else OperationEffect.NONE
            found.append(msgspec.structs.replace(status, effect=said, reason=status.reason or effect.reason))
        return found

    def operations(self, suffix: str) -> Sequence[AnchoredOperation]:
        """All anchored operations on *suffix*, in ledger order."""
        query = sa.select(t.history.c.number, t.history.c.place, t.history.c.request)
        query = query.where(t.history.c.suffix == suffix).order_by(t.history.c.number, t.history.c.place)
        rows = self._database.rows(query)
        return [AnchoredOperation(row.number, row.place, stored_operation(row.request, suffix)) for row in rows]

    def state(self, suffix: str) -> DidState | None:
        """The state of the DID of *suffix*; None if it is not anchored."""
        return resolve(self.operations(suffix), self._versions.latest.profile)

    def resolve(self, did: str) -> dict[str, Any] | None:
        """The resolution result of *did*, a short or long form; None where nothing is known of it.

        Operations that are not anchored count as this history was told to; ``unpublishedOperations`` lists them, and
        ``published`` says whether the DID is anchored.

        Raises :class:`~millstream.anchoring.sidetree.RequestError` for what is not a DID of this network.
        """
        identifier = parse_did(did, self._versions.latest.profile)
        accepted = self._unpublished(identifier.suffix)  # read first: what is observed meanwhile is in one of the two
        anchored = self.operations(identifier.suffix)
        profile = self._versions.latest.profile
        state = resolve(anchored, profile)
        later, unpublished = follow(state, without(anchored, accepted), profile, create=identifier.create)
        if not unpublished:
            return resolution(identifier, state)
        published = state is not None
        shown = state if published and not self._apply_unpublished else later
        return resolution(
            identifier, shown, published=published, unpublished=[each.described() for each in unpublished]
        )

    def _unpublished(self, suffix: str) -> Sequence[UnpublishedOperation]:
        if not self._unpublished_for:
            return []
        accepted = self._store.unpublished(suffix, self._unpublished_for)
        return unpublished_operations(accepted, self._versions.latest.profile, self._database.clock.now())


def _storable(text: str | None) -> str | None:
    """*text*, which may quote what a stranger has written, as every database takes it."""
    return text and text[:2_000].encode("utf-8", "backslashreplace").decode("utf-8")


class _ObservedOperations:
    """What the rows of an observed entry are."""

    def __init__(
        self,
        entry: LedgerEntry,
        batch: OperationBatch | None,
        fault: str | None,
        accepted: Mapping[str, ParsedOperation] = NONE_ACCEPTED,
    ) -> None:
        operations = batch.operations if batch else ()
        self.anchor: dict[str, Any] = {
            "number": entry.number,
            "hash": entry.hash,
            "operations": len(operations),
            "fault": _storable(fault),
        }
        self.rows: list[tuple[str, int, int, bytes]] = []
        self.places: list[tuple[int, int]] = []
        """The places of operations by their place in the order of acceptance."""
        self.ids: list[tuple[str, int]] = []
        """The places of the others by their ids."""
        for place, operation in enumerate(operations):
            known = accepted.get(operation.suffix)
            if known is not None and known.operation == operation and has_one_id(operation):
                request = known.queued.request
                self.places.append((known.queued.seq, place))
            else:
                request = canonical_request(operation)
                self.ids += [(name, place) for name in known_ids(operation, request)]
            self.rows.append((operation.suffix, entry.number, place, request))


def canonical_request(operation: Operation) -> bytes:
    """The canonical request of *operation*, which was anchored. Raises :class:`UnreadableAnchorError`."""
    try:
        return canonical(operation.request)
    except RequestError as error:
        raise UnreadableAnchorError(f"cannot record the operation on {operation.suffix}: {error}") from error


def _insert_history(connection: sa.Connection, found: _ObservedOperations) -> None:
    if found.rows:
        insert_rows(connection, t.history, ["suffix", "number", "place", "request"], found.rows)


def _delete_history(connection: sa.Connection, number: int) -> None:
    """Delete the operations under ledger entry *number*, which are few or none."""
    if not connection.scalar(sa.select(t.anchors.c.operations).where(t.anchors.c.number == number)):
        return
    rows = connection.execute(sa.select(t.history.c.suffix).where(t.history.c.number == number)).all()
    suffixes = [row.suffix for row in rows]
    for start in range(0, len(suffixes), _CHUNK):
        chosen = t.history.c.suffix.in_(suffixes[start : start + _CHUNK])  # the primary key begins with the suffix
        connection.execute(sa.delete(t.history).where(chosen, t.history.c.number == number))


def _insert_anchor(connection: sa.Connection, anchor: Mapping[str, Any]) -> bool:
    """Insert the row of an entry, where there is none yet."""
    number = anchor["number"]
    if connection.execute(sa.select(t.anchors.c.number).where(t.anchors.c.number == number)).first():
        return False
    connection.execute(sa.insert(t.anchors), anchor)
    return True
