"""The registry's database: its tables, and its error."""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa

from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.errors import DatabaseBusyError
from millstream.core.clock import Clock
from millstream.core.errors import BusyError
from millstream.core.sql import SqlDatabase


class RegistryDatabase(SqlDatabase):
    """The registry's tables in the database of *engine*, made where they are absent. Thread-safe."""

    busy_error: ClassVar[type[BusyError]] = DatabaseBusyError

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        super().__init__(engine, clock, t.metadata)
