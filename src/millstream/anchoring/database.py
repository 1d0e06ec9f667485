"""What the tables of the node's database share whose names begin with ``anchor_``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

metadata = sa.MetaData()
"""The tables of the journal and of the observer's index."""


def among(column: sa.ColumnElement[Any], values: Iterable[int | str]) -> sa.ColumnElement[bool]:
    """Whether *column* is one of *values*, of which there may be many thousands.

    They travel as one JSON array; a variable each would cost more than the search.
    """
    listed = sa.func.json_each(msgspec.json.encode(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(listed.c.value))
