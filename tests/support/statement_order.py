"""Another transaction in between two statements of a transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import sqlalchemy as sa


@contextlib.contextmanager
def before_statement(engine: sa.Engine, word: str, act: Callable[[], object]) -> Iterator[None]:
    """In the block, *act* is called once, before the first statement with *engine* that contains *word*."""
    called = list[str]()

    def executing(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if word in statement and not called:
            called.append(statement)
            act()

    sa.event.listen(engine, "before_cursor_execute", executing)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", executing)
    assert called, f"no statement with {word!r}"
