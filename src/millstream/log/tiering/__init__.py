"""Older blocks of a log as sealed objects in an object store, verified before they leave the log's own store."""

from __future__ import annotations

from millstream.log.tiering.manifest import Tiering
from millstream.log.tiering.objects import OpenObjects, TierObjects
from millstream.log.tiering.reading import TierInfo
from millstream.log.tiering.tierer import Moved, Tierer

__all__ = ["Moved", "OpenObjects", "TierInfo", "TierObjects", "Tierer", "Tiering"]
