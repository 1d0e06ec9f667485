"""The collectors of time stamps for the ledgers of a node, and their time stamps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.anchoring.errors import TimestampError
from millstream.anchoring.transparency.ledger_tree import LedgerTree
from millstream.node.anchoring import AnchoringPart
from millstream.node.context import NodeContext
from millstream.node.ledger_trees import LedgerName, LedgerTreesPart

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.collector import TimestampCollector
    from millstream.anchoring.timestamps.entry_timestamp import EntryTimestamp
    from millstream.anchoring.timestamps.timestamp_tables import TimestampTable


class TimestampsPart:
    """A collector for each ledger, by the authorities of the settings; *tree* opens the tree of a ledger."""

    def __init__(
        self,
        context: NodeContext,
        trees: LedgerTreesPart,
        anchoring: AnchoringPart,
        tree: Callable[[LedgerName], LedgerTree],
    ) -> None:
        self._context = context
        self._trees = trees
        self._anchoring = anchoring
        self._tree = tree
        self._lock = threading.Lock()
        self._collectors: dict[LedgerName, TimestampCollector] = {}

    def table(self, name: LedgerName) -> TimestampTable:
        """The time stamps of the ledger *name*; there may be some although no authority is configured any more."""
        from millstream.anchoring.timestamps.timestamp_tables import TimestampTable

        return TimestampTable(self._trees.engine, name)

    def find(self, name: LedgerName) -> None:
        """Search content-addressed storage for the time stamps of the ledger *name*, and list them again.

        Raises :class:`TimestampError` where the ledger has some already.
        """
        from millstream.anchoring.timestamps.finding import find_timestamps

        find_timestamps(self._anchoring.cas, self._tree(name), self.table(name))

    def of_entry(self, name: LedgerName, number: int) -> Sequence[EntryTimestamp]:
        """The time stamps of entry *number* of the ledger *name*."""
        from millstream.anchoring.timestamps.stamped_entries import timestamps_of

        records = self.table(name).records()
        path, now = self._tree(name).inclusion_path, self._context.clock.now()
        return timestamps_of(number, records, cas=self._anchoring.cas, path=path, now=now) if records else ()

    def collector(self, name: LedgerName) -> TimestampCollector | None:
        """The collector of time stamps for the ledger *name*, None without authorities.

        Raises :class:`TimestampError` for certificates that cannot be used, ImportError without the package.
        """
        from millstream.anchoring.http_reader import HttpReader
        from millstream.anchoring.timestamps.authorities import read_authorities
        from millstream.anchoring.timestamps.client import TimestampClient
        from millstream.anchoring.timestamps.collector import AUTHORITY_SECONDS, TimestampCollector, TimestampRules

        settings, clock = self._context.settings.anchoring, self._context.clock
        if not settings.timestamp_authorities:
            return None
        import rfc3161_client  # noqa: F401  # now rather than at the first request

        with self._lock:
            if name not in self._collectors:
                path = settings.timestamp_certificates
                trusted = read_authorities(Path(path)) if path else None
                reader = HttpReader(seconds=AUTHORITY_SECONDS, clock=clock)
                clients = [TimestampClient(url, trusted, reader) for url in settings.timestamp_authorities]
                rules = TimestampRules(
                    interval=settings.timestamp_interval,
                    digest=settings.timestamp_digest,
                    renewal=settings.timestamp_renewal,
                    retired=settings.timestamp_retired_digests,
                )
                self._collectors[name] = TimestampCollector(
                    self._tree(name),
                    clients,
                    table=self.table(name),
                    cas=self._anchoring.cas,
                    clock=clock,
                    rules=rules,
                )
            return self._collectors[name]

    def required_collector(self, name: LedgerName) -> TimestampCollector:
        """The collector of time stamps for the ledger *name*. Raises :class:`TimestampError` without authorities."""
        collector = self.collector(name)
        if collector is None:
            raise TimestampError(
                "no time-stamping authorities are configured: set anchoring.timestamp_authorities to their URLs"
            )
        return collector
