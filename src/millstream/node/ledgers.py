"""The three ledgers of a node by their names, and the keys that sign them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from millstream.anchoring import LogLedger
from millstream.anchoring.transparency.keys import LedgerKeys
from millstream.core.clock import Clock
from millstream.node.anchoring import AnchoringPart
from millstream.node.context import NodeContext
from millstream.node.registry import RegistryPart
from millstream.node.reports import ReportsPart
from millstream.settings import Settings

LedgerName = Literal["anchors", "reports", "registry"]
"""What a ledger is called in commands and settings, and in the names of its files."""

LEDGERS: Sequence[LedgerName] = ("anchors", "reports", "registry")


class LedgersPart:
    """The ledgers of batches (anchors), of integrity reports, and of identifiers (registry)."""

    def __init__(
        self, context: NodeContext, *, anchoring: AnchoringPart, reports: ReportsPart, registry: RegistryPart
    ) -> None:
        self._context = context
        self._anchoring = anchoring
        self._reports = reports
        self._registry = registry

    def ledger(self, name: LedgerName) -> LogLedger:
        """The ledger *name*."""
        if name == "reports":
            return self._reports.ledger
        return self._registry.ledger if name == "registry" else self._anchoring.ledger

    def keys(self, name: LedgerName) -> LedgerKeys:
        """The keys of the ledger *name*."""
        return ledger_keys(self._context.settings, name, self._context.clock)


def ledger_keys(settings: Settings, name: LedgerName, clock: Clock) -> LedgerKeys:
    """The keys of the ledger *name* of the node of *settings*; nothing else of the node is opened."""
    folder = settings.anchoring.key_folder
    return LedgerKeys(Path(folder) if folder else settings.folder / "keys", name, clock)
