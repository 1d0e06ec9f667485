"""The observer of operations: reads the ledger in order, applies all reader rules, and records what it finds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from millstream.anchoring.cas import CasReader
from millstream.anchoring.errors import (
    RESTORE_LEDGER,
    CasDamagedError,
    CasError,
    CasNotFoundError,
    CasOverlongError,
    LedgerError,
    LedgerReplacedError,
    ObservationBlockedError,
    ObservationDelayedError,
)
from millstream.anchoring.ledger import Ledger, LedgerEntry, entries_after
from millstream.anchoring.registry.errors import UnreadableAnchorError
from millstream.anchoring.registry.history import NONE_ACCEPTED, AnchorRecord, OperationHistory
from millstream.anchoring.registry.protocol_versions import ProtocolVersions
from millstream.anchoring.registry.states import ParsedOperation
from millstream.anchoring.sidetree import BatchFileError, OperationBatch, ReadBatch, read_batch
from millstream.anchoring.sidetree.batch_reader import Fetch

_log = logging.getLogger(__name__)


UNAVAILABLE_ERRORS = (CasNotFoundError, CasDamagedError, CasOverlongError, UnreadableAnchorError)
"""The reason why an anchor cannot be read now, although the storage answers."""


OTHER_SECONDS = 2.0
"""How long an entry is left to the instance that made it, before it is observed here: it has the batch in its memory,
others read all its files."""

_LOOK_SECONDS = 0.05


class OperationObserver:
    """Applies each entry of *ledger* to *history* once, in order, even if other processes do the same. Thread-safe.

    *is_of_other* says whether an entry was made by another instance that has not finished it.
    """

    def __init__(
        self,
        history: OperationHistory,
        cas: CasReader,
        ledger: Ledger,
        versions: ProtocolVersions,
        *,
        is_of_other: Callable[[LedgerEntry], bool] = lambda _entry: False,
    ) -> None:
        self.history = history
        self._cas = cas
        self._ledger = ledger
        self._versions = versions
        self._is_of_other = is_of_other
        self._observing = threading.Lock()

    def observe(
        self,
        *,
        last: int | None = None,
        known: ReadBatch | None = None,
        accepted: Mapping[str, ParsedOperation] = NONE_ACCEPTED,
    ) -> int:
        """Read all entries that are new, or those to number *last*; how many there were.

        The batch *known* is not parsed again; *accepted* are its operations by suffix, as this registry stored them.
        Other instances get :data:`OTHER_SECONDS` for each of their entries.

        Raises :class:`ObservationBlockedError` at an entry while storage does not answer, and
        :class:`LedgerReplacedError` where the ledger does not continue what was observed, or ends before it; all
        entries before that one are kept.
        """
        with self._observing:
            number, before = self.history.position()
            count = 0
            for entry in self._entries_after(number, before, last):
                is_known = known is not None and entry.anchor_string == known.anchor
                if is_known or not self._is_recorded_by_other(entry):
                    observe_operations(self.history, self._cas, self._versions, entry, known=known, accepted=accepted)
                count += 1
            return count

    def check_ledger(self) -> None:
        """Raise :class:`LedgerReplacedError` where the ledger has no longer the entry that was observed last."""
        number, last = self.history.position()
        next(self._entries_after(number, last, number), None)

    def rebuild(self) -> int:
        """Read all of a ledger that lost entries that were observed; how many entries there are.

        Operations that it does not hold any more are accepted again, if they are recorded still. Nothing is changed
        where the ledger continues what was observed: then only new entries are read. Raises :class:`LedgerError` where
        its chain is broken.
        """
        try:
            self.check_ledger()
        except LedgerReplacedError:
            self._ledger.verify()
            self.history.clear()
        return self.observe()

    def _entries_after(self, number: int, seal: str, last: int | None = None) -> Iterator[LedgerEntry]:
        name = "the ledger of identifiers"
        return entries_after(self._ledger, number, seal, last, name=name, remedy=RESTORE_LEDGER)

    def _is_recorded_by_other(self, entry: LedgerEntry) -> bool:
        """Wait while another instance is about to record *entry*; whether it did so."""
        end: float | None = None
        while (found := self.history.anchor(entry.number)) is None:
            now = self.history.clock.monotonic()
            end = now + OTHER_SECONDS if end is None else end
            if now >= end or not self._is_of_other(entry):
                return False
            self.history.clock.sleep(_LOOK_SECONDS)
        required_record(found, entry)
        return True

    def read_postponed(self, *, due: bool = True) -> int:
        """Read the entries again whose files were not available; returns how many are now."""
        return read_postponed(self.history, self._cas, self._versions, due=due)


def observe_operations(
    history: OperationHistory,
    cas: CasReader,
    versions: ProtocolVersions,
    entry: LedgerEntry,
    *,
    postpone: tuple[type[CasError], ...] = UNAVAILABLE_ERRORS,
    judged: Callable[[], object] = lambda: None,
    known: ReadBatch | None = None,
    accepted: Mapping[str, ParsedOperation] = NONE_ACCEPTED,
) -> AnchorRecord:
    """Judge *entry* by all reader rules and record the verdict in *history*, which has all earlier entries.

    An entry whose files cannot be read because of an error of the types *postpone* is skipped and read again later:
    otherwise any writer to the ledger could block all its readers. Until then, the operations that need no provisional
    file are recorded, if the core files can be read. *judged* is called after everything was read and
    before anything is recorded. The batch *known* is not parsed again; *accepted* are its operations by suffix, and of
    no other entry: operations that compare as equal may differ (``1`` and ``true``).

    Raises :class:`ObservationBlockedError` if its files cannot be read for another reason, and :class:`LedgerError` if
    another process has recorded a different entry of this number.
    """
    batch: OperationBatch | None = None
    try:
        batch, fault = read_entry(cas.get, versions, entry, partial=True, known=known)
        unavailable = batch.unavailable if batch else None
    except CasError as error:
        unavailable, fault = error, None
    count = len(batch.operations) if batch else 0
    if unavailable is None:
        judged()
        is_known = known is not None and entry.anchor_string == known.anchor
        try:
            recorded = history.record(entry, batch, fault, accepted=accepted if is_known else NONE_ACCEPTED)
            made = AnchorRecord(entry.number, entry.hash, count, fault)
        except UnreadableAnchorError as error:
            unavailable, batch, count = error, None, 0
    if unavailable is not None:
        text = f"cannot read anchor {entry.number}: {unavailable}"
        if not isinstance(unavailable, postpone):
            raise (ObservationDelayedError if unavailable.transient else ObservationBlockedError)(text) from unavailable
        try:
            recorded = history.postpone(entry, text, batch)
        except UnreadableAnchorError:  # an operation that needs no other file cannot be recorded either
            recorded, count = history.postpone(entry, text), 0
        made = AnchorRecord(entry.number, entry.hash, count, text)
    if recorded:
        return made
    return required_record(history.anchor(entry.number), entry)


def required_record(found: AnchorRecord | None, entry: LedgerEntry) -> AnchorRecord:
    """*found*, the record of *entry*. Raises :class:`LedgerError` if it is that of another entry."""
    if found is None or found.hash != entry.hash:
        raise LedgerError(
            f"another process recorded a different ledger entry {entry.number} in this database: its hash is "
            f"{found.hash if found else 'unknown'}, not {entry.hash}. The two processes follow different ledgers: stop "
            "the process that follows the wrong ledger. If that process recorded the entry, also restore the database "
            "from a backup, or follow the right ledger with an empty database"
        )
    return found


def read_postponed(history: OperationHistory, cas: CasReader, versions: ProtocolVersions, *, due: bool = True) -> int:
    """Read the postponed entries again whose turn it is, or all; how many were recorded."""
    count = 0
    for entry in history.postponed(due=due):
        try:
            batch, fault = read_entry(cas.get, versions, entry, partial=True)
            if batch is not None and batch.unavailable is not None:
                history.retry_later(entry, batch)
            else:
                count += history.record_late(entry, batch, fault)
        except CasError:
            history.retry_later(entry)
    return count


def read_entry(
    fetch: Fetch,
    versions: ProtocolVersions,
    entry: LedgerEntry,
    *,
    partial: bool = False,
    known: ReadBatch | None = None,
) -> tuple[OperationBatch | None, str | None]:
    """The batch of *entry*, read by *fetch*, and what is wrong with it.

    With *partial*, a batch whose provisional files are unavailable has the operations that need none of them. Raises
    :class:`CasError`.
    """
    try:
        profile = versions.at(entry.time).profile
        batch = read_batch(entry.anchor_string, fetch, profile, time=entry.time, partial=partial, known=known)
    except BatchFileError as error:
        return None, str(error)
    except CasError:
        raise
    except Exception as error:  # a bug of ours must not block all readers at one file
        _log.exception("anchor %d could not be judged", entry.number)
        raise UnreadableAnchorError(
            f"internal error ({type(error).__name__}: {error}): please report it with the traceback in the log"
        ) from error
    return batch, batch.fault
