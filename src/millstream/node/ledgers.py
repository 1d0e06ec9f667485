"""The three ledgers of a node by their names, and the keys that sign them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from millstream.anchoring import LogLedger
from millstream.anchoring.transparency.checkpoint import parse_checkpoint
from millstream.anchoring.transparency.entry_proof import EntryProof, newest_checkpoint, prove_entry
from millstream.anchoring.transparency.keys import LedgerKeys, LedgerSigner
from millstream.anchoring.transparency.ledger_tree import LedgerTree
from millstream.anchoring.transparency.signed_note import parse_note
from millstream.core.clock import Clock
from millstream.node.anchoring import AnchoringPart
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.registry import RegistryPart
from millstream.node.reports import ReportsPart
from millstream.settings import Settings

LedgerName = Literal["anchors", "reports", "registry"]
"""What a ledger is called in commands and settings, and in the names of its files."""

LEDGERS: Sequence[LedgerName] = ("anchors", "reports", "registry")


class SignedLedger(msgspec.Struct, frozen=True):
    """A ledger, its durable tree, and what signs the tree's heads."""

    ledger: LogLedger
    tree: LedgerTree
    signer: LedgerSigner

    def checkpoint(self) -> bytes:
        """The newest checkpoint, signed now where the ledger has grown or has a new key, as far as this process may."""
        return newest_checkpoint(self.tree, self.signer, covers=self.ledger.last_number).data

    def prove_entry(self, number: int) -> EntryProof:
        """The proof that entry *number* is in the newest checkpoint's tree. Raises :class:`LedgerError`."""
        return prove_entry(number, self.ledger, self.tree, self.signer)


class LedgersPart:
    """The ledgers of batches (anchors), of integrity reports, and of identifiers (registry)."""

    def __init__(
        self,
        context: NodeContext,
        *,
        databases: DatabasesPart,
        anchoring: AnchoringPart,
        reports: ReportsPart,
        registry: RegistryPart,
    ) -> None:
        self._context = context
        self._databases = databases
        self._opening = threading.Lock()
        self._signed: dict[LedgerName, SignedLedger] = {}
        self._anchoring = anchoring
        self._reports = reports
        self._registry = registry

    def ledger(self, name: LedgerName) -> LogLedger:
        """The ledger *name*."""
        if name == "reports":
            return self._reports.ledger
        return self._registry.ledger if name == "registry" else self._anchoring.ledger

    def signed(self, name: LedgerName) -> SignedLedger:
        """The ledger *name* with its tree, opened once."""
        with self._opening:
            if name not in self._signed:
                self._signed[name] = self._open(name)
            return self._signed[name]

    def _open(self, name: LedgerName) -> SignedLedger:
        ledger, engine = self.ledger(name), self._databases.own
        newest = LedgerTree(ledger, engine, name).newest()
        origin = parse_checkpoint(parse_note(newest.data)).origin if newest else None
        signer = LedgerSigner(self.keys(name), origin)
        return SignedLedger(ledger, LedgerTree(ledger, engine, name, signer=signer), signer)

    def keys(self, name: LedgerName) -> LedgerKeys:
        """The keys of the ledger *name*."""
        return ledger_keys(self._context.settings, name, self._context.clock)


def ledger_keys(settings: Settings, name: LedgerName, clock: Clock) -> LedgerKeys:
    """The keys of the ledger *name* of the node of *settings*; nothing else of the node is opened."""
    folder = settings.anchoring.key_folder
    return LedgerKeys(Path(folder) if folder else settings.folder / "keys", name, clock)
