"""Replaying the anchors of identifiers: what the database says, against the ledger and the files alone."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.anchoring.anchor_replay import ReplayFinding, ReplayReport
from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import CasError, LedgerError
from millstream.anchoring.ledger import Ledger, LedgerEntry, checked_chain
from millstream.anchoring.registry.history import OperationHistory, canonical_request
from millstream.anchoring.registry.operation_observer import read_entry
from millstream.anchoring.registry.protocol_versions import ProtocolVersions


def replay_registry(cas: Cas, ledger: Ledger, history: OperationHistory, versions: ProtocolVersions) -> ReplayReport:
    """Check the chain of *ledger*, read every file it names by all rules of a reader, and compare *history* with them.

    One batch is held at a time. A finding stops nothing but what depends on it.
    """
    return _RegistryReplay(cas, ledger, history, versions).run()


class _RegistryReplay:
    def __init__(self, cas: Cas, ledger: Ledger, history: OperationHistory, versions: ProtocolVersions) -> None:
        self._cas, self._ledger, self._history, self._versions = cas, ledger, history, versions
        self._anchors = self._files = 0
        self._broken = False

    def run(self) -> ReplayReport:
        findings = tuple(self._findings())
        return ReplayReport(self._anchors, self._files, findings)

    def _findings(self) -> Iterator[ReplayFinding]:
        counts = dict(self._history.counts())
        try:
            for entry in checked_chain(self._ledger.entries()):
                self._anchors += 1
                yield from self._check(entry, counts.pop(entry.number, 0))
        except LedgerError as error:
            yield ReplayFinding("ledger", str(error), self._anchors + 1)
            return  # nothing can be said of what comes after a break in the chain
        for number in sorted(counts):
            yield ReplayFinding("index", f"anchor {number} of the database is not in the ledger", number)

    def _check(self, entry: LedgerEntry, count: int) -> Iterator[ReplayFinding]:
        number = entry.number
        try:
            batch, fault = read_entry(self._fetch, self._versions, entry)
            operations = batch.operations if batch else ()
            rows = [
                (operation.suffix, place, canonical_request(operation)) for place, operation in enumerate(operations)
            ]
        except CasError as error:
            yield ReplayFinding("file", str(error), number)
            return
        record = self._history.anchor(number)
        if record is None:
            yield ReplayFinding("index", f"anchor {number} is missing from the database, or not observed yet", number)
            return
        # Releases may word a fault differently.
        observed = (record.hash, record.operations, record.fault is not None)
        if observed != (entry.hash, len(rows), fault is not None):
            yield ReplayFinding("index", f"the database disagrees with the content of anchor {number}", number)
        if count != len(rows) or self._history.rows(number, [row[0] for row in rows]) != rows:
            text = f"the operations of anchor {number} in the database differ from those in its files"
            yield ReplayFinding("index", text, number)

    def _fetch(self, cid: str, limit: int) -> bytes:
        data = self._cas.get(cid, limit)
        self._files += 1
        return data
