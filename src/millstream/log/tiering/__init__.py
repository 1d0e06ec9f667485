"""Older blocks of a log as sealed objects in an object store, verified before they leave the log's own store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.log.tiering.block_mover import BlockMover
    from millstream.log.tiering.compactor import Compactor
    from millstream.log.tiering.objects import OpenObjects, TierObjects
    from millstream.log.tiering.spec import Compaction, TierInfo, Tiering, TieringResult

__all__ = [
    "BlockMover",
    "Compaction",
    "Compactor",
    "OpenObjects",
    "TierInfo",
    "TierObjects",
    "Tiering",
    "TieringResult",
]

__getattr__ = lazy_names(__name__)
