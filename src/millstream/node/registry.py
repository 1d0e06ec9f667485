"""The registry of identifiers of a node: as an instance that takes operations, or following another registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.anchoring import LogLedger
from millstream.core.cached import locked_cached_property
from millstream.node.anchoring import AnchoringPart
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.ledger_trees import LedgerTreesPart
from millstream.node.logs import LogsPart
from millstream.node.queues import QueuesPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.anchoring.registry import AnchorRecord, DidRegistry, FollowState, LedgerFollower, OperationStatus
    from millstream.anchoring.remote_cas import CasFailure

REGISTRY_LEDGER = "registry.ledger"
"""The ledger of identifiers."""


class RegistryPart:
    """The ledger of identifiers, and the registry on it."""

    def __init__(
        self,
        context: NodeContext,
        *,
        databases: DatabasesPart,
        logs: LogsPart,
        anchoring: AnchoringPart,
        queues: QueuesPart,
        trees: LedgerTreesPart,
    ) -> None:
        self._context = context
        self._databases = databases
        self._logs = logs
        self._anchoring = anchoring
        self._queues = queues
        self._trees = trees

    @locked_cached_property
    def ledger(self) -> LogLedger:
        """The ledger of anchors of identifiers."""
        ledger = LogLedger(self._logs.store, self._context.clock, name=REGISTRY_LEDGER, create=not self._context.reads)
        return self._trees.attach("registry", ledger)

    @locked_cached_property
    def instance(self) -> DidRegistry:
        """This process as an instance of the registry of identifiers; not started."""
        from millstream.anchoring.http_reader import redacted_url
        from millstream.anchoring.registry import DidRegistry, RegistryDatabase, network_versions
        from millstream.anchoring.registry.service import instance_name

        settings = self._context.settings.registry
        state = self.follow_state()
        if state is not None and state.position:  # the network was chosen when the first entry was read
            settings = msgspec.structs.replace(settings, profile=state.profile, method=state.method)
        return DidRegistry(
            RegistryDatabase(self._databases.at(settings.database), self._context.clock),
            self._anchoring.cas,
            self.ledger,
            instance=instance_name(),
            settings=settings.parameters,
            versions=network_versions(settings.network),
            broker=self._queues.open("operation") if self._context.settings.queue.broker else None,
            follows=redacted_url(settings.follow.ledger),
        )

    def follow_state(self) -> FollowState | None:
        """How far the registry has followed the ledger of another one; None where it follows none."""
        from millstream.anchoring.registry.follow_state import follow_state

        settings = self._context.settings.registry
        with self._databases.at(settings.database).connect() as connection:
            return follow_state(connection, pending=bool(settings.follow.ledger))

    def follower(
        self,
        *,
        told: Callable[[AnchorRecord], object] = lambda _: None,
        refused: Callable[[CasFailure], object] = lambda _: None,
    ) -> LedgerFollower:
        """Reads the registry that the settings name (``registry.follow``) into this node's.

        *told* is called for each recorded entry, *refused* for each location that did not return a file. Raises
        :class:`~millstream.anchoring.registry.FollowError` where this node has anchored operations of its own.
        """
        from millstream.anchoring.ledger_source import open_ledger
        from millstream.anchoring.registry import FollowError, LedgerFollower, RegistryDatabase, network_versions
        from millstream.anchoring.remote_cas import FallbackCas, open_cas_source

        settings, clock = self._context.settings.registry, self._context.clock
        if self.ledger.last_number:
            raise FollowError(
                "this node has anchored operations of its own and cannot follow another ledger: use "
                "another node (--data) to follow that ledger"
            )
        return LedgerFollower(
            RegistryDatabase(self._databases.at(settings.database), clock),
            FallbackCas([open_cas_source(place) for place in settings.follow.cas], refused, clock=clock),
            open_ledger(settings.follow.ledger),
            network_versions(settings.network),
            told=told,
        )

    def operation_status(self, operation: str) -> OperationStatus:
        """The status of an operation. Raises :class:`~millstream.anchoring.registry.UnknownOperationError`."""
        from millstream.anchoring.registry import UnknownOperationError

        status = self.instance.status(operation)
        if status is None:
            raise UnknownOperationError(
                f"unknown operation {operation[:100]!r}: it was not submitted to this node, or its record has expired; "
                "check the id"
            )
        return status
