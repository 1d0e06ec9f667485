"""Anchoring on a node: from batches to files and their entries in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchWriter,
    CutLimits,
    LocalCas,
    LogLedger,
    Observer,
)
from millstream.anchoring.store_cas import StoreBackedCas, open_store_cas
from millstream.core.cached import locked_cached_property
from millstream.core.database_server import largest_statement
from millstream.log import LogSpec
from millstream.node.batching import BatchingPart
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.ledger_trees import LedgerTreesPart
from millstream.node.logs import LogsPart
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.feed import AnchorFeed


def open_cas(settings: Settings) -> LocalCas | StoreBackedCas:
    """The content-addressed files of a node with *settings*: in its folder, or at the storage provider that they name.

    The first write makes the place where it is absent.
    """
    url = settings.anchoring.cas
    if not url:
        return LocalCas(settings.folder / "cas")
    return open_store_cas(url)


class AnchoringPart:
    """The parts that anchor batches, and read anchors back."""

    def __init__(
        self,
        context: NodeContext,
        databases: DatabasesPart,
        logs: LogsPart,
        batching: BatchingPart,
        trees: LedgerTreesPart,
    ) -> None:
        self._context = context
        self._databases = databases
        self._logs = logs
        self._batching = batching
        self._trees = trees

    @property
    def cas_url(self) -> str:
        """The location of the content-addressed files: ``cas:///folder``, or the URL of a storage provider."""
        own = (self._context.folder / "cas").absolute().as_uri().replace("file:", "cas:", 1)
        return self._context.settings.anchoring.cas or own

    @locked_cached_property
    def cas(self) -> LocalCas | StoreBackedCas:
        """The content-addressed files: in a folder, or at the storage provider that the settings name."""
        return open_cas(self._context.settings)

    @locked_cached_property
    def ledger(self) -> LogLedger:
        """The ledger of anchors."""
        ledger = LogLedger(self._logs.store, self._context.clock, create=not self._context.reads)
        return self._trees.attach("anchors", ledger)

    @locked_cached_property
    def journal(self) -> BatchJournal:
        """The states of batches on their way to an anchor."""
        return BatchJournal(self._databases.own)

    @locked_cached_property
    def observer(self) -> Observer:
        """Reads anchors back and indexes what they hold."""
        return Observer(AnchorIndex(self._databases.own), self.cas, self.ledger)

    @locked_cached_property
    def batch_writer(self) -> BatchWriter:
        """Takes batches to their anchor."""
        settings = self._context.settings.anchoring
        limits = CutLimits(settings.max_batches, settings.file_bytes)
        statement_bytes = largest_statement(self._databases.own)
        if statement_bytes is not None:
            limits = limits.within(statement_bytes)
        clock = self._context.clock
        return BatchWriter(self.journal, self.cas, self.ledger, self.observer, limits=limits, clock=clock)

    def feed(self, log: str, batches: str) -> AnchorFeed:
        """Anchors the batches that the log *batches* gets, which are of *log*.

        Raises :class:`~millstream.anchoring.BatchFormatError` where the rules of *batches* amend batches.
        """
        from millstream.anchoring.feed import AnchorFeed, refuse_amending_rules
        from millstream.batching.rule_changes import read_rules

        store = self._logs.store
        source, output = store.log(LogSpec(log), create=False), store.log(LogSpec(batches, kind="batches"))
        rules = read_rules(output) or self._batching.rules
        refuse_amending_rules(rules)
        return AnchorFeed(source, output, self.batch_writer, rules)

    def prepare(self) -> None:
        """Open journal, ledger and observer now."""
        _ = self.journal, self.ledger, self.observer
