"""The observer of operations: reads the ledger in order, applies all reader rules, and records what it finds."""

from __future__ import annotations

import threading

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import CasError, LedgerError, ObservationBlockedError
from millstream.anchoring.ledger import Ledger, LedgerEntry, check_seal
from millstream.anchoring.registry.history import History
from millstream.anchoring.registry.versions import Versions
from millstream.anchoring.sidetree import BatchFileError, ReadBatch, read_batch


class OperationObserver:
    """Applies the entries of *ledger* to *history*, once each and in order, whoever else does so. Thread-safe."""

    def __init__(self, history: History, cas: Cas, ledger: Ledger, versions: Versions) -> None:
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
                self.history.record(entry, *self._judged(entry))
                number, last, count = entry.number, entry.hash, count + 1
            return count

    def _judged(self, entry: LedgerEntry) -> tuple[ReadBatch | None, str | None]:
        """The batch of *entry*, and what is wrong with it."""
        try:
            profile = self._versions.at(entry.time).profile
            batch = read_batch(entry.anchor_string, self._cas.get, profile, time=entry.time)
        except BatchFileError as error:
            return None, str(error)
        except CasError as error:
            raise ObservationBlockedError(f"anchor {entry.number} cannot be read: {error}") from error
        return batch, batch.fault
