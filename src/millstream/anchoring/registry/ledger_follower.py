"""Following the ledger of another registry: its entries and files are read, checked, and recorded like one's own.

Nothing is written where they come from. An entry is recorded whole or not at all, so a follower may be killed anywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import msgspec
import sqlalchemy as sa

from millstream.anchoring.cas import CasReader
from millstream.anchoring.errors import CasError, LedgerError, ObservationBlockedError
from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.ledger_source import LedgerSource
from millstream.anchoring.registry import follow_state
from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.anchoring.registry.history import AnchorRecord, OperationHistory
from millstream.anchoring.registry.operation_observer import UNAVAILABLE_ERRORS, observe_operations, read_postponed
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.protocol_versions import ProtocolVersions
from millstream.core.amounts import counted
from millstream.core.errors import MillstreamError

_RESTORE = (
    "restore the ledger from a backup that has these entries or, if another operator runs the ledger, compare it with "
    "the copy of another reader"
)

SAVE_SECONDS = 5.0
"""Minimum seconds between two saves of the progress."""

MAX_ATTEMPTS = 3
"""Attempts to read an entry whose files no source answers for, before it is skipped."""

_CHUNK = 5_000


class FollowerProgress(msgspec.Struct, frozen=True):
    """What was read: counts of ``entries``, of their ``operations``, and of entries with ``faults``.

    ``position`` is the last recorded entry, ``behind`` counts the entries after it, ``waiting`` the earlier ones whose
    files no source has, and ``chain`` says whether the ledger's entries form a hash chain (None if nothing was read).
    """

    entries: int = 0
    operations: int = 0
    faults: int = 0
    position: int = 0
    behind: int = 0
    waiting: int = 0
    chain: bool | None = None


class LedgerFollower:
    """Brings the registry in *database* up to date with *ledger*, whose files are in *cas*. Not thread-safe.

    *told* is called with every recorded entry. ``total`` is the progress since this object was created.
    """

    def __init__(
        self,
        database: RegistryDatabase,
        cas: CasReader,
        ledger: LedgerSource,
        versions: ProtocolVersions,
        *,
        told: Callable[[AnchorRecord], object] = lambda _: None,
    ) -> None:
        self._database, self._cas, self._ledger, self._versions = database, cas, ledger, versions
        self.history = OperationHistory(database, OperationStore(database), versions)
        self._told = told
        self._saved_at = database.clock.monotonic()
        self._claimed = False
        self._reached = 0
        self._blocked = (0, 0)
        self.total = FollowerProgress(position=self.history.position()[0])

    def begin(self) -> None:
        """Record which ledger is followed. From its first entry on, the registry accepts no operations.

        Raises :class:`~millstream.anchoring.registry.FollowError` if it has operations of its own.
        """
        self._begin(claim=False)

    def _claim(self) -> None:
        if not self._claimed:
            self._begin(claim=True)

    def _begin(self, *, claim: bool) -> None:
        profile = self._versions.latest.profile
        names = (self._ledger.name, profile.name, profile.method)
        self._database.write(lambda connection, _now: follow_state.begin(connection, *names, claim=claim))
        self._claimed = claim

    def catch_up(self, stopping: Callable[[], bool] = lambda: False, *, patient: bool = False) -> FollowerProgress:
        """Record all new entries, until *stopping*; returns the progress of this call.

        An entry whose files no source has is skipped and read again by the next call, or with *patient* after a
        growing pause. Raises :class:`~millstream.anchoring.ObservationBlockedError` if no source answers or the first
        entry cannot be read, and :class:`LedgerError` if the ledger does not continue the observed one; earlier
        entries are kept.
        """
        before = self.total
        self.begin()
        try:
            read_postponed(self.history, self._cas, self._versions, due=patient)
            self._read(stopping)
        except Exception as error:
            self._save(str(error) if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}")
            raise
        waiting = self.history.postponed(limit=1)
        self.total = msgspec.structs.replace(self.total, waiting=self.history.postponed_count())
        self._save(self.waiting_for(waiting[0]) if waiting else None)
        done = {name: getattr(self.total, name) - getattr(before, name) for name in ("entries", "operations", "faults")}
        return msgspec.structs.replace(self.total, **done)

    def waiting_for(self, entry: LedgerEntry) -> str:
        """The reason why *entry* was skipped, and the number of skipped entries."""
        record = self.history.anchor(entry.number)
        count = self.total.waiting
        more = (
            f", and {counted(count - 1, 'more entry', 'more entries')} of the ledger wait for their files"
            if count > 1
            else ""
        )
        return f"{record.fault if record else entry.number}{more}"

    def _read(self, stopping: Callable[[], bool]) -> None:
        position, last = self.history.position()
        try:
            with self._ledger.reading(position) as entries:
                if entries is None:
                    return
                try:
                    self._record_new(entries, position, last, stopping)
                finally:
                    self._note_rest()
        except _ChangedError as error:
            raise LedgerError(self._changed(error.number)) from error

    def _record_new(
        self, entries: Iterator[LedgerEntry], position: int, last: str, stopping: Callable[[], bool]
    ) -> None:
        recorded, self._reached = _RecordedHashes(self._database), 0
        for entry in entries:
            self._reached = entry.number
            if entry.number <= position:
                if recorded.hash_of(entry.number) != entry.hash:
                    raise _ChangedError(entry.number)
                continue
            if entry.previous != last:
                self._refuse_gap(entry, position)
                raise _ChangedError(entry.number)
            self._record(entry)
            position, last = entry.number, entry.hash
            if stopping():
                return
        if self._reached < position:
            raise LedgerError(
                f"the ledger {self._ledger.name} ends at entry {self._reached:,}, but entry {position:,} was observed "
                f"before: the ledger was truncated or replaced; {_RESTORE}"
            )
        self._ledger.settled()

    def _refuse_gap(self, entry: LedgerEntry, position: int) -> None:
        if self._ledger.is_chain and entry.number > position + 1:
            raise LedgerError(
                f"the ledger {self._ledger.name} begins at entry {entry.number:,}: use a copy of the ledger that "
                f"begins at entry {position + 1:,} or earlier"
            )

    def _record(self, entry: LedgerEntry) -> None:
        postpone = self._postponing(entry)
        try:
            record = observe_operations(
                self.history, self._cas, self._versions, entry, postpone=postpone, judged=self._claim
            )
        except ObservationBlockedError:
            self._blocked = entry.number, self._blocked[1] + 1 if self._blocked[0] == entry.number else 1
            raise
        total = self.total
        self.total = msgspec.structs.replace(
            total,
            entries=total.entries + 1,
            operations=total.operations + record.operations,
            faults=total.faults + (record.fault is not None),
            position=entry.number,
            chain=self._ledger.is_chain,
        )
        self._told(record)
        if self._database.clock.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save(None)

    def _postponing(self, entry: LedgerEntry) -> tuple[type[CasError], ...]:
        """The types of errors for which *entry* is skipped.

        None before the first recorded entry, since the configured sources may be wrong. All after some attempts, since
        a gateway does not answer for a file that no peer has.
        """
        if self.history.position()[0] == 0:
            return ()
        return (CasError,) if self._blocked >= (entry.number, MAX_ATTEMPTS) else UNAVAILABLE_ERRORS

    def _note_rest(self) -> None:
        """Count the remaining entries; a failure to count must not hide an earlier error."""
        position = self.history.position()[0]
        try:
            behind = self._ledger.remaining()
        except MillstreamError:
            behind = self.total.behind
        waiting = self._reached > position  # the last entry was read, but not recorded
        self.total = msgspec.structs.replace(
            self.total, position=position, behind=behind + waiting, chain=self._ledger.is_chain
        )

    def _changed(self, number: int) -> str:
        """The error text for a ledger whose entry *number*, or an earlier one, is not the observed one."""
        position, _ = self.history.position()
        recorded = _RecordedHashes(self._database)
        with self._ledger.reading(1) as entries:
            for entry in entries or ():
                if entry.number > position:
                    break
                if recorded.hash_of(entry.number) != entry.hash:
                    number = entry.number
                    break
        return (
            f"entry {number:,} of the ledger {self._ledger.name} does not continue the entries that were observed, "
            f"up to entry {position:,}: the ledger was rewritten or replaced; {_RESTORE}"
        )

    def _save(self, error: str | None) -> None:
        total = self.total
        write = functools.partial(follow_state.save, behind=total.behind, chain=total.chain, error=error)
        self._database.write(write)
        self._saved_at = self._database.clock.monotonic()


class _ChangedError(Exception):
    """Entry ``number`` is not the observed one, or does not follow it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _RecordedHashes:
    """The hashes of the observed entries; call it in ascending order."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database
        self._hashes: dict[int, str] = {}
        self._last = 0

    def hash_of(self, number: int) -> str | None:
        """The hash of entry *number*; None where no entry of this number was observed."""
        if number > self._last:
            query = sa.select(t.anchors.c.number, t.anchors.c.hash).where(t.anchors.c.number >= number)
            rows = self._database.rows(query.order_by(t.anchors.c.number).limit(_CHUNK))
            self._hashes = {row.number: row.hash for row in rows}
            self._last = max(self._hashes, default=number)
        return self._hashes.get(number)
