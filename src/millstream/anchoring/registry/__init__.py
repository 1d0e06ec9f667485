"""A registry of decentralized identifiers: operations in, anchored exactly once, resolvable, and never out of sight.

:class:`OperationIntake` → :class:`OperationQueue` → :class:`OperationWriter` → :class:`OperationObserver` →
:class:`OperationHistory`; a :class:`DidRegistry` is one instance with all of them. Names are loaded when they are
first used, so that reading the parameters does not load a database driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.registry.database import RegistryDatabase
    from millstream.anchoring.registry.errors import (
        DatabaseBusyError,
        FollowError,
        NotTriedError,
        QueueStoppedError,
        ReadOnlyError,
        RegistryError,
        TooManyOpenError,
        UnknownOperationError,
    )
    from millstream.anchoring.registry.follow_state import FollowState
    from millstream.anchoring.registry.history import AnchorRecord, OperationHistory
    from millstream.anchoring.registry.instances import Instances
    from millstream.anchoring.registry.leases import PeriodicTask, TaskManager
    from millstream.anchoring.registry.ledger_follower import FollowerProgress, LedgerFollower
    from millstream.anchoring.registry.operation_intake import OperationIntake, SubmissionResult
    from millstream.anchoring.registry.operation_observer import OperationObserver
    from millstream.anchoring.registry.operation_queue import OperationQueue
    from millstream.anchoring.registry.operation_store import OperationStore
    from millstream.anchoring.registry.operation_writer import OperationWriter
    from millstream.anchoring.registry.protocol_versions import ProtocolVersion, ProtocolVersions, network_versions
    from millstream.anchoring.registry.service import DidRegistry
    from millstream.anchoring.registry.settings import OperationQueueSettings, RegistryParameters
    from millstream.anchoring.registry.states import OperationEffect, OperationState, OperationStatus

__all__ = [
    "AnchorRecord",
    "DatabaseBusyError",
    "DidRegistry",
    "FollowError",
    "FollowState",
    "FollowerProgress",
    "Instances",
    "LedgerFollower",
    "NotTriedError",
    "OperationEffect",
    "OperationHistory",
    "OperationIntake",
    "OperationObserver",
    "OperationQueue",
    "OperationQueueSettings",
    "OperationState",
    "OperationStatus",
    "OperationStore",
    "OperationWriter",
    "PeriodicTask",
    "ProtocolVersion",
    "ProtocolVersions",
    "QueueStoppedError",
    "ReadOnlyError",
    "RegistryDatabase",
    "RegistryError",
    "RegistryParameters",
    "SubmissionResult",
    "TaskManager",
    "TooManyOpenError",
    "UnknownOperationError",
    "network_versions",
]

__getattr__ = lazy_names(__name__)
