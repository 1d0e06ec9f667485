"""A node as the composition of its parts."""

from __future__ import annotations

import contextlib
from typing import Self

from millstream.core.clock import Clock, SystemClock
from millstream.core.closing import ClosesOnExit
from millstream.core.metrics_collector import MetricsCollector
from millstream.core.private_files import make_private_folder, restrict
from millstream.node.anchoring import AnchoringPart
from millstream.node.batching import BatchingPart
from millstream.node.context import NodeContext
from millstream.node.databases import DATABASE, DatabasesPart
from millstream.node.errors import NodeFolderError, NodeNotFoundError
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
from millstream.settings import FILE_NAME, Settings

_OURS = (
    "batching", "broker-tls*", "cas", "console.key", "ingest", "jobs", FILE_NAME, "log", "log.db*", "node.db*",
    "policies", "producers", "reports", "serving.json", "spark", "staging", "stores",
)  # fmt: skip
"""What a node keeps in its folder."""

_SIGNS = (FILE_NAME, "log.db", DATABASE, "policies")
"""A folder with one of these in it is a node's; a first policy may be all that there is so far."""


class Node(ClosesOnExit):
    """Everything on one data folder: parts that open what they need when it is first asked for. Thread-safe.

    Use it as a context manager: what the parts have opened is closed together, the last first.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.folder = settings.folder
        self.clock = clock or SystemClock()
        self.metrics = MetricsCollector()
        self._resources = contextlib.ExitStack()
        context = NodeContext(
            settings=settings,
            folder=self.folder,
            clock=self.clock,
            resources=self._resources,
            metrics=self.metrics,
        )
        self.databases = DatabasesPart(context)
        self.logs = LogsPart(context)
        self.messaging = MessagingPart(context, self.logs)
        self.batching = BatchingPart(context, self.logs)
        self.anchoring = AnchoringPart(context, self.databases, self.logs, self.batching)
        self.stores = StoresPart(context, self.databases)
        self.policies = PoliciesPart(context, self.stores)
        self.queues = QueuesPart(context, self.databases, self.logs, self.stores)
        self.registry = RegistryPart(
            context, databases=self.databases, logs=self.logs, anchoring=self.anchoring, queues=self.queues
        )
        self.mill = MillPart(
            context,
            databases=self.databases,
            logs=self.logs,
            stores=self.stores,
            policies=self.policies,
            queues=self.queues,
        )
        self.ledgers = LedgersPart(
            context,
            databases=self.databases,
            anchoring=self.anchoring,
            reports=self.mill.reports,
            registry=self.registry,
        )
        self.proofs = ProofsPart(self.logs, self.anchoring, self.stores, self.ledgers)
        self.spark = SparkPart(context)

    @classmethod
    def open(cls, settings: Settings, clock: Clock | None = None, *, create: bool = False) -> Self:
        """The node of *settings*. With *create* its folder is made where it is absent.

        Other accounts of the machine cannot read the folder (``data_access``); what is ours in a folder of before is
        taken from them.

        Raises :class:`NodeNotFoundError` where there is no node, :class:`NodeFolderError` where there can be none.
        """
        try:
            if create:
                make_private_folder(settings.folder)
            is_node = any((settings.folder / name).exists() for name in _SIGNS)
            if not is_node and not create:
                raise NodeNotFoundError(f"there is no node in {settings.folder}; check --data")
            if is_node or not any(settings.folder.iterdir()):
                restrict(settings.folder, _OURS, group=settings.data_access == "group")
        except OSError as error:
            raise NodeFolderError(f"cannot use {settings.folder} as the node's folder: {error.strerror}") from error
        return cls(settings, clock)

    def close(self) -> None:
        """Close all that was opened. Closing again does nothing."""
        self._resources.close()
