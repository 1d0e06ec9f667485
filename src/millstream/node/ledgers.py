"""The three ledgers of a node by their names, their signed trees, and the keys that sign them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millstream.anchoring import LogLedger
from millstream.anchoring.errors import LedgerKeyError
from millstream.anchoring.log_ledger import LEDGER_LOG
from millstream.anchoring.transparency.entry_proof import EntryProof, newest_checkpoint, prove_entry
from millstream.anchoring.transparency.keys import LedgerKeys
from millstream.anchoring.transparency.ledger_tree import LedgerTree
from millstream.anchoring.transparency.published_files import PublishedFiles
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.anchoring.transparency.tiles import CHECKPOINT
from millstream.core.errors import BusyError
from millstream.log import system_log
from millstream.node.anchoring import AnchoringPart
from millstream.node.context import NodeContext
from millstream.node.cosignatures import CosignaturesPart
from millstream.node.ledger_trees import LEDGERS, LedgerName, LedgerTreesPart, ledger_keys
from millstream.node.logs import LogsPart
from millstream.node.registry import REGISTRY_LEDGER, RegistryPart
from millstream.node.reports import REPORT_LEDGER, ReportsPart
from millstream.node.timestamps import TimestampsPart

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.entry_timestamp import EntryTimestamp
    from millstream.anchoring.witness.collector import CosignatureCollector

__all__ = ["LEDGERS", "LedgerName", "LedgersPart", "SignedLedger", "ledger_keys"]


StampEntry: TypeAlias = "Callable[[int], Sequence[EntryTimestamp]]"
"""The time stamps of the ledger entry with this number."""


class SignedLedger(msgspec.Struct, frozen=True):
    """A ledger, its durable tree, what signs the tree's heads, and what collects cosignatures of them, if anything.

    ``stamp`` gives the time stamps of an entry.
    """

    ledger: LogLedger
    tree: LedgerTree
    signer: CheckpointSigner
    collector: CosignatureCollector | None = None
    stamp: StampEntry | None = None

    def checkpoint(self) -> bytes:
        """The newest checkpoint, signed, copied and published now where that is missing, as far as this process may.

        It has the cosignatures that were collected for it.
        """
        try:
            data = self.tree.checkpoint().data
        except (BusyError, LedgerKeyError):
            data = newest_checkpoint(self.tree, self.signer, covers=self.ledger.last_number).data
        return self.collector.with_cosignatures(data) if self.collector else data

    def prove_entry(self, number: int) -> EntryProof:
        """The proof that entry *number* is in the tree of a checkpoint. Raises :class:`LedgerError`.

        That is the newest one with the quorum of witnesses, if it covers the entry, otherwise the newest one. The proof
        has the time stamps of the entry.
        """
        complete = self.collector.status().complete if self.collector else None
        proof = prove_entry(number, self.ledger, self.tree, self.signer, cosigned=complete)
        if self.stamp is not None:
            proof = msgspec.structs.replace(proof, timestamps=self.stamp(number))
        if self.collector is None:
            return proof
        return msgspec.structs.replace(proof, checkpoint=self.collector.with_cosignatures(proof.checkpoint))


class LedgersPart:
    """The ledgers of batches (anchors), of integrity reports, and of identifiers (registry)."""

    def __init__(
        self,
        context: NodeContext,
        trees: LedgerTreesPart,
        *,
        logs: LogsPart,
        anchoring: AnchoringPart,
        reports: ReportsPart,
        registry: RegistryPart,
    ) -> None:
        self._context = context
        self._trees = trees
        self._logs = logs
        self._published: dict[LedgerName, PublishedFiles | None] = {}
        self._anchoring = anchoring
        self._reports = reports
        self._registry = registry
        self.cosignatures = CosignaturesPart(context, trees, self.tree)
        self.timestamps = TimestampsPart(context, trees, anchoring, self.tree)

    def ledger(self, name: LedgerName) -> LogLedger:
        """The ledger *name*."""
        if name == "reports":
            return self._reports.ledger
        return self._registry.ledger if name == "registry" else self._anchoring.ledger

    def has(self, name: LedgerName) -> bool:
        """Whether the ledger *name* was begun."""
        log = {"anchors": LEDGER_LOG, "reports": REPORT_LEDGER, "registry": REGISTRY_LEDGER}[name]
        return self._logs.store.has(system_log(log, "ledger").name)

    def tree(self, name: LedgerName) -> LedgerTree:
        """The tree of the ledger *name*, and its checkpoints."""
        self.ledger(name)
        return self._trees.tree(name)

    def signed(self, name: LedgerName) -> SignedLedger:
        """The ledger *name* with its tree and what signs it."""
        tree = self.tree(name)
        return SignedLedger(
            self.ledger(name),
            tree,
            tree.required_signer,
            self.cosignatures.collector(name),
            partial(self.timestamps.of_entry, name),
        )

    def published(self, name: LedgerName) -> PublishedFiles | None:
        """The published tiles of the ledger *name*; None where they are not published."""
        if name not in self._published:
            self._published[name] = self._trees.places(name).tiles
        return self._published[name]

    def copied(self, name: LedgerName) -> bytes | None:
        """The checkpoint of the ledger *name* outside the data folder; None where there is none.

        Raises :class:`LedgerUnavailableError`.
        """
        copy = self._trees.places(name).copy
        return copy.read(CHECKPOINT) if copy is not None else None

    def keys(self, name: LedgerName) -> LedgerKeys:
        """The keys of the ledger *name*."""
        return ledger_keys(self._context.settings, name, self._context.clock)
