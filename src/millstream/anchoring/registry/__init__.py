"""A registry of decentralized identifiers: operations in, anchored exactly once, resolvable, and never out of sight.

:class:`Acceptance` → :class:`OperationQueue` → :class:`OperationWriter` → :class:`OperationObserver` →
:class:`History`; a :class:`Registry` is one instance with all of them.
"""

from __future__ import annotations

from millstream.anchoring.registry.acceptance import Acceptance, Outcome
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.anchoring.registry.errors import (
    CrowdedError,
    DatabaseBusyError,
    QueueStoppedError,
    RegistryError,
    UnknownOperationError,
)
from millstream.anchoring.registry.history import AnchorRecord, History
from millstream.anchoring.registry.instances import Instances
from millstream.anchoring.registry.leases import PeriodicTask, TaskManager
from millstream.anchoring.registry.operation_observer import OperationObserver
from millstream.anchoring.registry.operation_queue import OperationQueue, OperationQueueSettings
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.operation_writer import OperationWriter
from millstream.anchoring.registry.service import Registry
from millstream.anchoring.registry.settings import RegistrySettings
from millstream.anchoring.registry.states import OperationState, OperationStatus
from millstream.anchoring.registry.versions import Version, Versions

__all__ = [
    "Acceptance",
    "AnchorRecord",
    "CrowdedError",
    "DatabaseBusyError",
    "History",
    "Instances",
    "OperationObserver",
    "OperationQueue",
    "OperationQueueSettings",
    "OperationState",
    "OperationStatus",
    "OperationStore",
    "OperationWriter",
    "Outcome",
    "PeriodicTask",
    "QueueStoppedError",
    "Registry",
    "RegistryDatabase",
    "RegistryError",
    "RegistrySettings",
    "TaskManager",
    "UnknownOperationError",
    "Version",
    "Versions",
]
