"""A registry of decentralized identifiers: operations in, anchored exactly once, resolvable, and never out of sight.

:class:`OperationIntake` → :class:`OperationQueue` → :class:`OperationWriter` → :class:`OperationObserver` →
:class:`OperationHistory`; a :class:`DidRegistry` is one instance with all of them. Names are loaded when they are
first used, so that reading the parameters does not load a database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.anchoring.registry.database import RegistryDatabase
    from millstream.anchoring.registry.errors import (
        DatabaseBusyError,
        FollowError,
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

_MODULES = {
    "operation_intake": ("OperationIntake", "SubmissionResult"),
    "database": ("RegistryDatabase",),
    "errors": (
        "TooManyOpenError",
        "DatabaseBusyError",
        "FollowError",
        "QueueStoppedError",
        "ReadOnlyError",
        "RegistryError",
        "UnknownOperationError",
    ),
    "follow_state": ("FollowState",),
    "ledger_follower": ("FollowerProgress", "LedgerFollower"),
    "history": ("AnchorRecord", "OperationHistory"),
    "instances": ("Instances",),
    "leases": ("PeriodicTask", "TaskManager"),
    "operation_observer": ("OperationObserver",),
    "operation_queue": ("OperationQueue",),
    "operation_store": ("OperationStore",),
    "operation_writer": ("OperationWriter",),
    "service": ("DidRegistry",),
    "settings": ("OperationQueueSettings", "RegistryParameters"),
    "states": ("OperationEffect", "OperationState", "OperationStatus"),
    "protocol_versions": ("ProtocolVersion", "ProtocolVersions", "network_versions"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AnchorRecord",
    "DatabaseBusyError",
    "DidRegistry",
    "FollowError",
    "FollowState",
    "FollowerProgress",
    "Instances",
    "LedgerFollower",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
