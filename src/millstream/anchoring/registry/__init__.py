"""A registry of decentralized identifiers: operations in, anchored exactly once, resolvable, and never out of sight.

:class:`Acceptance` → :class:`OperationQueue` → :class:`OperationWriter` → :class:`OperationObserver` →
:class:`History`; a :class:`Registry` is one instance with all of them. Names are loaded when they are first used, so
that reading the parameters does not load a database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.anchoring.registry.acceptance import Acceptance, Outcome
    from millstream.anchoring.registry.database import RegistryDatabase
    from millstream.anchoring.registry.errors import (
        CrowdedError,
        DatabaseBusyError,
        FollowError,
        QueueStoppedError,
        ReadOnlyError,
        RegistryError,
        UnknownOperationError,
    )
    from millstream.anchoring.registry.follow_state import FollowState
    from millstream.anchoring.registry.following import Followed, Follower
    from millstream.anchoring.registry.history import AnchorRecord, History
    from millstream.anchoring.registry.instances import Instances
    from millstream.anchoring.registry.leases import PeriodicTask, TaskManager
    from millstream.anchoring.registry.operation_observer import OperationObserver
    from millstream.anchoring.registry.operation_queue import OperationQueue
    from millstream.anchoring.registry.operation_store import OperationStore
    from millstream.anchoring.registry.operation_writer import OperationWriter
    from millstream.anchoring.registry.service import Registry
    from millstream.anchoring.registry.settings import OperationQueueSettings, RegistrySettings
    from millstream.anchoring.registry.states import OperationEffect, OperationState, OperationStatus
    from millstream.anchoring.registry.versions import Version, Versions, network_versions

_MODULES = {
    "acceptance": ("Acceptance", "Outcome"),
    "database": ("RegistryDatabase",),
    "errors": (
        "CrowdedError",
        "DatabaseBusyError",
        "FollowError",
        "QueueStoppedError",
        "ReadOnlyError",
        "RegistryError",
        "UnknownOperationError",
    ),
    "follow_state": ("FollowState",),
    "following": ("Followed", "Follower"),
    "history": ("AnchorRecord", "History"),
    "instances": ("Instances",),
    "leases": ("PeriodicTask", "TaskManager"),
    "operation_observer": ("OperationObserver",),
    "operation_queue": ("OperationQueue",),
    "operation_store": ("OperationStore",),
    "operation_writer": ("OperationWriter",),
    "service": ("Registry",),
    "settings": ("OperationQueueSettings", "RegistrySettings"),
    "states": ("OperationEffect", "OperationState", "OperationStatus"),
    "versions": ("Version", "Versions", "network_versions"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Acceptance",
    "AnchorRecord",
    "CrowdedError",
    "DatabaseBusyError",
    "FollowError",
    "FollowState",
    "Followed",
    "Follower",
    "History",
    "Instances",
    "OperationEffect",
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
    "ReadOnlyError",
    "Registry",
    "RegistryDatabase",
    "RegistryError",
    "RegistrySettings",
    "TaskManager",
    "UnknownOperationError",
    "Version",
    "Versions",
    "network_versions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
