"""Older blocks of a log as sealed objects in an object store, verified before they leave the log's own store."""

from __future__ import annotations

from millstream.log.tiering.block_mover import BlockMover, TieringResult
from millstream.log.tiering.objects import OpenObjects, TierObjects
from millstream.log.tiering.reading import TierInfo
from millstream.log.tiering.sealed_objects import Tiering

__all__ = ["BlockMover", "OpenObjects", "TierInfo", "TierObjects", "Tiering", "TieringResult"]
