"""What was anchored, by DID: the observer's table, and the state of a DID out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.anchoring.ledger import GENESIS, LedgerEntry
from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.unpublished import Unpublished, follow, revived, without
from millstream.anchoring.registry.versions import Versions
from millstream.anchoring.sidetree import (
    Anchored,
    DidState,
    Operation,
    OperationType,
    ReadBatch,
    parse_did,
    resolution,
    resolve,
)
from millstream.anchoring.sidetree.encoding import canonical, hash_bytes
from millstream.anchoring.sidetree.operations import revive
from millstream.core.sql import insert_rows

_decoder = msgspec.json.Decoder(dict[str, Any])
_CHUNK = 5_000


class AnchorRecord(msgspec.Struct, frozen=True):
    """An observed anchor: how many operations were read from it, and what was wrong with it, if anything was."""

    number: int
    hash: str
    operations: int
    fault: str | None


class History:
    """The anchored operations of every DID, in *database*. Thread-safe.

    Operations that are not anchored count for :meth:`resolve` until *unpublished* seconds after they were accepted (0:
    never): a DID that is not anchored resolves from them, that of an anchored one lists them. With
    *apply_unpublished* they change the document of an anchored DID as well.
    """

    def __init__(
        self,
        database: RegistryDatabase,
        store: OperationStore,
        versions: Versions,
        *,
        unpublished: float = 0.0,
        apply_unpublished: bool = False,
    ) -> None:
        self._database = database
        self._store = store
        self._versions = versions
        self._unpublished_for = unpublished
        self._apply_unpublished = apply_unpublished

    def position(self) -> tuple[int, str]:
        """The last ledger entry that was observed, and its hash; 0 before the first."""
        query = sa.select(t.anchors.c.number, t.anchors.c.hash).order_by(t.anchors.c.number.desc()).limit(1)
        row = self._database.read(lambda c, _now: c.execute(query).first())
        return (row.number, row.hash) if row else (0, GENESIS)

    def anchor(self, number: int) -> AnchorRecord | None:
        """What was observed of ledger entry *number*; None while it was not."""
        query = sa.select(*[t.anchors.c[name] for name in AnchorRecord.__struct_fields__])
        row = self._database.read(lambda c, _now: c.execute(query.where(t.anchors.c.number == number)).first())
        return AnchorRecord(*row) if row else None

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

    def record(self, entry: LedgerEntry, batch: ReadBatch | None, fault: str | None) -> bool:
        """Ledger *entry* holds *batch*, or nothing that readers take. All of it is recorded, or none.

        False where another instance has recorded it already.
        """
        operations = batch.operations if batch else ()
        requests = [canonical(operation.request) for operation in operations]
        anchor = {"number": entry.number, "hash": entry.hash, "operations": len(operations), "fault": fault}
        rows = [
            (operation.suffix, entry.number, place, request)
            for place, (operation, request) in enumerate(zip(operations, requests, strict=True))
        ]

        def transaction(connection: sa.Connection, now: int) -> bool:
            if connection.execute(sa.select(t.anchors.c.number).where(t.anchors.c.number == entry.number)).first():
                return False
            connection.execute(sa.insert(t.anchors), anchor)
            if rows:
                insert_rows(connection, t.history, ["suffix", "number", "place", "request"], rows)
                self._store.observed(connection, now, entry.number, [hash_bytes(request) for request in requests])
            return True

        try:
            return self._database.write(transaction)
        except sa.exc.IntegrityError:  # both looked before either wrote
            return False

    def operations(self, suffix: str) -> Sequence[Anchored]:
        """All anchored operations on *suffix*, in ledger order."""
        query = sa.select(t.history.c.number, t.history.c.place, t.history.c.request)
        query = query.where(t.history.c.suffix == suffix).order_by(t.history.c.number, t.history.c.place)
        rows = self._database.rows(query)
        return [Anchored(row.number, row.place, revive(row.request, suffix)) for row in rows]

    def state(self, suffix: str) -> DidState | None:
        """Where the DID of *suffix* stands; None where it is not anchored."""
        return resolve(self.operations(suffix), self._versions.latest.profile)

    def resolve(self, did: str) -> dict[str, Any] | None:
        """The resolution result of *did*, a short or long form; None where nothing is known of it.

        Operations that are not anchored count as this history was told to; ``unpublishedOperations`` lists them, and
        ``published`` says whether the DID is anchored.

        Raises :class:`~millstream.anchoring.sidetree.RequestError` for what is no DID of this network.
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

    def refusals(self, operations: Sequence[Operation]) -> Sequence[str | None]:
        """Why each of *operations*, one after the other, cannot be valid now; None where it may be.

        A DID whose create is among the earlier ones is known. Two queries, however many operations there are.
        """
        asked = list(dict.fromkeys(o.suffix for o in operations if o.type != OperationType.CREATE))
        anchored = self._anchored(asked)
        known = anchored.keys() | self._store.under_way([suffix for suffix in asked if suffix not in anchored])
        ended = {suffix for suffix, may_be in anchored.items() if may_be and self._is_deactivated(suffix)}
        reasons = list[str | None]()
        for operation in operations:
            if operation.type == OperationType.CREATE:
                known.add(operation.suffix)
                reasons.append(None)
            elif operation.suffix in ended:
                reasons.append("the DID is deactivated, and that is final")
            else:
                reasons.append(None if operation.suffix in known else "the DID is not known here: create it first")
        return reasons

    def _unpublished(self, suffix: str) -> Sequence[Unpublished]:
        if not self._unpublished_for:
            return []
        accepted = self._store.unpublished(suffix, self._unpublished_for)
        return revived(accepted, self._versions.latest.profile, self._database.clock.now())

    def _anchored(self, suffixes: Sequence[str]) -> dict[str, bool]:
        """Those of *suffixes* that are anchored, and whether one of their operations looks like a deactivate."""
        deactivate = sa.func.max(sa.func.instr(t.history.c.request, b'"type":"deactivate"')).label("ends")
        found = dict[str, bool]()
        for start in range(0, len(suffixes), _CHUNK):
            chosen = t.history.c.suffix.in_(suffixes[start : start + _CHUNK])
            query = sa.select(t.history.c.suffix, deactivate).where(chosen).group_by(t.history.c.suffix)
            found.update((row.suffix, bool(row.ends)) for row in self._database.rows(query))
        return found

    def _is_deactivated(self, suffix: str) -> bool:
        state = self.state(suffix)
        return state is not None and state.deactivated
