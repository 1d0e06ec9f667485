"""Monitors: programs that follow a ledger from outside, and find whether its operator rewrites, forks or hides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.monitor.entry_audit import FileReplay
    from millstream.anchoring.monitor.findings import MonitorFinding, MonitorReport
    from millstream.anchoring.monitor.monitor import LedgerMonitor, MonitorRules
    from millstream.anchoring.monitor.published_tree import HttpFiles, PublishedTree, open_published
    from millstream.anchoring.monitor.state import MonitorStateFile

__all__ = [
    "FileReplay",
    "HttpFiles",
    "LedgerMonitor",
    "MonitorFinding",
    "MonitorReport",
    "MonitorRules",
    "MonitorStateFile",
    "PublishedTree",
    "open_published",
]

__getattr__ = lazy_names(__name__)
