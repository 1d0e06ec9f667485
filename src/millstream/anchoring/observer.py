"""The observer: reads the ledger in order, checks every rule, and keeps an index of what is anchored where."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import msgspec

from millstream.anchoring.cas import Cas, CasReader
from millstream.anchoring.content import AnchoredBatches, read_anchor
from millstream.anchoring.errors import (
    RESTORE_LEDGER,
    BatchFormatError,
    CasError,
    ObservationBlockedError,
    ObservationDelayedError,
)
from millstream.anchoring.index import AnchorIndex
from millstream.anchoring.ledger import GENESIS, Ledger, LedgerEntry, entries_after


class ObserverProgress(msgspec.Struct, frozen=True):
    """How far the observer is (``position``, 0 before the first entry) and how many entries it has just read."""

    position: int
    entries: int


class Observer:
    """Applies the entries of *ledger*, once each and in order, to *index*; *cas* holds the files they name.

    An entry that breaks a rule is recorded as invalid with its reason and never looked at again. Damage of the storage
    is not a property of an entry: the observer stops there, and continues when the file is back.
    """

    def __init__(self, index: AnchorIndex, cas: Cas, ledger: Ledger) -> None:
        self.index = index
        self._cas = cas
        self._ledger = ledger
        self._observing = threading.Lock()

    def observe(self, read: Mapping[str, AnchoredBatches] = {}) -> ObserverProgress:
        """Read all entries that are new; *read* is what is in some of their files, as in :func:`read_anchor`.

        Raises :class:`ObservationBlockedError` at an entry whose files cannot be read, and
        :class:`LedgerReplacedError` where the ledger does not continue what was observed, or ends before it; all
        entries before that one are kept.
        """
        with self._observing:
            number, last = self.index.position() or (0, GENESIS)
            count = 0
            for entry in self._entries_after(number, last):
                observe_entry(self.index, self._cas, entry, read)
                number, count = entry.number, count + 1
            return ObserverProgress(number, count)

    def check_ledger(self) -> None:
        """Raise :class:`LedgerReplacedError` where the ledger has no longer the entry that was observed last."""
        number, last = self.index.position() or (0, GENESIS)
        next(self._entries_after(number, last, number), None)

    def _entries_after(self, number: int, seal: str, last: int | None = None) -> Iterator[LedgerEntry]:
        return entries_after(self._ledger, number, seal, last, name="the ledger", remedy=RESTORE_LEDGER)


def observe_entry(
    index: AnchorIndex, cas: CasReader, entry: LedgerEntry, read: Mapping[str, AnchoredBatches] = {}
) -> None:
    """Judge *entry* by all reader rules and write the verdict into *index*, which has all entries before it.

    *read* is what is in some of its files, as in :func:`~millstream.anchoring.content.read_anchor`.

    Raises :class:`ObservationBlockedError` where storage cannot give what the entry names.
    """
    try:
        content = read_anchor(cas, entry.anchor_string, read)
    except BatchFormatError as error:
        index.record_invalid(entry, str(error))
        return
    except CasError as error:
        kind = ObservationDelayedError if error.transient else ObservationBlockedError
        raise kind(f"cannot read the files of anchor {entry.number}: {error}") from error
    index.record(entry, content, index.check_duplicates(content.manifest.log, content.batches.members))
