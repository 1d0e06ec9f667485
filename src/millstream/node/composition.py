"""A node as the composition of its parts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.core.cached import locked_cached_property
from millstream.core.clock import Clock, SystemClock
from millstream.core.closing import ClosesOnExit
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.core.private_files import make_private_folder, restrict
from millstream.node.context import NodeContext, is_node
from millstream.node.errors import NodeFolderError, NodeNotFoundError
from millstream.settings import FILE_NAME, Settings

if TYPE_CHECKING:
    from millstream.node.anchoring import AnchoringPart
    from millstream.node.batching import BatchingPart
    from millstream.node.databases import DatabasesPart
    from millstream.node.ledger_trees import LedgerTreesPart
    from millstream.node.ledgers import LedgersPart
    from millstream.node.logs import LogsPart
    from millstream.node.messaging import MessagingPart
    from millstream.node.mill import MillPart
    from millstream.node.policies import PoliciesPart
    from millstream.node.proofs import ProofsPart
    from millstream.node.queues import QueuesPart
    from millstream.node.registry import RegistryPart
    from millstream.node.spark import SparkPart
    from millstream.node.stores import StoresPart

_OURS = (
    BATCHING_FOLDER, "broker-tls*", "cas", "console.key", "ingest", "jobs", "ledger-tiles", FILE_NAME, "log",
    "log.db*", "node.db*", "policies", "producers", "reports", "serving.json", "spark", "staging", "stores",
)  # fmt: skip
"""The contents of a node's folder, without ``keys``, which only the owner can read."""


class Node(ClosesOnExit):
    """Everything on one data folder: parts that are loaded and opened when they are first asked for. Thread-safe.

    Use it as a context manager: what the parts have opened is closed together, the last first.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None, *, reads: bool = False) -> None:
        self.settings = settings
        self.folder = settings.folder
        self.clock = clock or SystemClock()
        self.metrics = MetricsCollector()
        self._resources = contextlib.ExitStack()
        self._context = NodeContext(
            settings=settings, folder=self.folder, clock=self.clock, resources=self._resources, metrics=self.metrics,
            reads=reads,
        )  # fmt: skip

    @locked_cached_property
    def databases(self) -> DatabasesPart:
        from millstream.node.databases import DatabasesPart

        return DatabasesPart(self._context)

    @locked_cached_property
    def logs(self) -> LogsPart:
        from millstream.node.logs import LogsPart

        return LogsPart(self._context)

    @locked_cached_property
    def messaging(self) -> MessagingPart:
        from millstream.node.messaging import MessagingPart

        return MessagingPart(self._context, self.logs, self.databases)

    @locked_cached_property
    def batching(self) -> BatchingPart:
        from millstream.node.batching import BatchingPart

        return BatchingPart(self._context, self.logs, self.databases)

    @locked_cached_property
    def anchoring(self) -> AnchoringPart:
        from millstream.node.anchoring import AnchoringPart

        return AnchoringPart(self._context, self.databases, self.logs, self.batching, self._trees)

    @locked_cached_property
    def _trees(self) -> LedgerTreesPart:
        from millstream.node.ledger_trees import LedgerTreesPart

        return LedgerTreesPart(self._context, lambda: self.databases.own)

    @locked_cached_property
    def stores(self) -> StoresPart:
        from millstream.node.stores import StoresPart

        return StoresPart(self._context, self.databases)

    @locked_cached_property
    def policies(self) -> PoliciesPart:
        from millstream.node.policies import PoliciesPart

        return PoliciesPart(self._context, self.stores)

    @locked_cached_property
    def queues(self) -> QueuesPart:
        from millstream.node.queues import QueuesPart

        return QueuesPart(self._context, self.databases, self.logs, self.stores)

    @locked_cached_property
    def registry(self) -> RegistryPart:
        from millstream.node.registry import RegistryPart

        return RegistryPart(
            self._context,
            databases=self.databases,
            logs=self.logs,
            anchoring=self.anchoring,
            queues=self.queues,
            trees=self._trees,
        )

    @locked_cached_property
    def mill(self) -> MillPart:
        from millstream.node.mill import MillPart

        return MillPart(
            self._context,
            databases=self.databases,
            logs=self.logs,
            stores=self.stores,
            policies=self.policies,
            queues=self.queues,
            trees=self._trees,
        )

    @locked_cached_property
    def ledgers(self) -> LedgersPart:
        from millstream.node.ledgers import LedgersPart

        return LedgersPart(
            self._context,
            self._trees,
            logs=self.logs,
            anchoring=self.anchoring,
            reports=self.mill.reports,
            registry=self.registry,
        )

    @locked_cached_property
    def proofs(self) -> ProofsPart:
        from millstream.node.proofs import ProofsPart

        return ProofsPart(self.logs, self.anchoring, self.stores, self.ledgers)

    @locked_cached_property
    def spark(self) -> SparkPart:
        from millstream.node.spark import SparkPart

        return SparkPart(self._context)

    @classmethod
    def open(cls, settings: Settings, clock: Clock | None = None, *, create: bool = False, reads: bool = False) -> Self:
        """The node of *settings*. With *create* its folder is made where it is absent. For one that *reads* only, a log
        store or database that the settings name has to be there: its name may be mistyped.

        Other accounts of the machine cannot read the folder (``data_access``); what is ours in a folder of before is
        taken from them.

        Raises :class:`NodeNotFoundError` where there is no node, :class:`NodeFolderError` where there can be none,
        :class:`~millstream.core.settings.SettingsError` for settings that contradict each other.
        """
        settings.anchoring.require_two_places(settings.folder)
        try:
            if create:
                make_private_folder(settings.folder)
            if not (is_made := is_node(settings.folder)) and not create:
                raise NodeNotFoundError(f"there is no node in {settings.folder}; check --data")
            if is_made or not any(settings.folder.iterdir()):
                restrict(settings.folder, _OURS, group=settings.data_access == "group")
        except OSError as error:
            raise NodeFolderError(f"cannot use {settings.folder} as the node's folder: {error.strerror}") from error
        return cls(settings, clock, reads=reads)

    def close(self) -> None:
        """Close all that was opened. Closing again does nothing."""
        self._resources.close()
