"""The context of every part of a node."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.core.clock import Clock
from millstream.settings import FILE_NAME, Settings

if TYPE_CHECKING:
    from millstream.core.metric_collection.collector import MetricsCollector

DATABASE = "node.db"
"""The node's own database, in its folder."""

_SIGNS = (FILE_NAME, "log.db", DATABASE, "policies")
"""A folder with one of these in it is a node's; a first policy may be all that there is so far."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeContext:
    """The settings, the data folder and the clock of a node, the stack that closes what its parts open, and the
    collector to which they report. What *reads* only makes no place outside the folder.
    """

    settings: Settings
    folder: Path
    clock: Clock
    resources: contextlib.ExitStack
    metrics: MetricsCollector
    reads: bool = False


def is_node(folder: Path) -> bool:
    """Whether *folder* is a node's, also of one that was never used."""
    return any((folder / name).exists() for name in _SIGNS)
