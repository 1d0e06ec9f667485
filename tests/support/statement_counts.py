"""Counting the statements that a test sends to a database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa


@contextlib.contextmanager
def statements_of(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that are executed with *engine* within the block, as they come."""
    found = list[str]()

    def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(statement)

    sa.event.listen(engine, "before_cursor_execute", executed)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", executed)
