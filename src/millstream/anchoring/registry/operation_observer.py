"""The observer of operations: reads the ledger in order, applies all reader rules, and records what it finds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.anchoring.cas import CasReader
from millstream.anchoring.errors import CasError, LedgerError, ObservationBlockedError
from millstream.anchoring.ledger import Ledger, LedgerEntry, check_seal
from millstream.anchoring.registry.history import AnchorRecord, History
from millstream.anchoring.registry.versions import Versions
from millstream.anchoring.sidetree import BatchFileError, ReadBatch, read_batch


class OperationObserver:
    """Applies the entries of *ledger* to *history*, once each and in order, whoever else does so. Thread-safe."""

    def __init__(self, history: History, cas: CasReader, ledger: Ledger, versions: Versions) -> None:
        self.history = history
        self._cas = cas
        self._ledger = ledger
        self._versions = versions
        self._observing = threading.Lock()

    def observe(self) -> int:
        """Read all entries that are new; how many there were.

        Raises :class:`ObservationBlockedError` at an entry whose files cannot be had, and :class:`LedgerError` where
        the ledger does not continue what was observed; all entries before that one are kept.
        """
        with self._observing:
            number, last = self.history.position()
            count = 0
            for entry in self._ledger.entries(number + 1):
                if check_seal(entry).number != number + 1 or entry.previous != last:
                    raise LedgerError(
                        f"ledger entry {entry.number} does not follow entry {number} as it was observed: "
                        "the ledger was rewritten or replaced"
                    )
                observe_operations(self.history, self._cas, self._versions, entry)
                number, last, count = entry.number, entry.hash, count + 1
            return count


def observe_operations(
    history: History,
    cas: CasReader,
    versions: Versions,
    entry: LedgerEntry,
    *,
    judged: Callable[[], object] = lambda: None,
) -> AnchorRecord:
    """Judge *entry* by all reader rules and record the verdict in *history*, which has all entries before it.

    *judged* is called in between: everything was read, and nothing is recorded.

    Raises :class:`ObservationBlockedError` where its files cannot be had, and :class:`LedgerError` where another
    process has recorded another entry of this number meanwhile.
    """
    batch, fault = _judged(cas, versions, entry)
    judged()
    if history.record(entry, batch, fault):
        return AnchorRecord(entry.number, entry.hash, len(batch.operations) if batch else 0, fault)
    found = history.anchor(entry.number)
    if found is None or found.hash != entry.hash:
        raise LedgerError(f"another process has recorded another ledger entry {entry.number}: two ledgers are read")
    return found


def _judged(cas: CasReader, versions: Versions, entry: LedgerEntry) -> tuple[ReadBatch | None, str | None]:
    """The batch of *entry*, and what is wrong with it."""
    try:
        batch = read_batch(entry.anchor_string, cas.get, versions.at(entry.time).profile, time=entry.time)
    except BatchFileError as error:
        return None, str(error)
    except CasError as error:
        raise ObservationBlockedError(f"anchor {entry.number} cannot be read: {error}") from error
    return batch, batch.fault
