"""A commit whose reply is lost: the database has made the change, and the process does not know that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa


@contextlib.contextmanager
def lost_reply_to_commit(engine: sa.Engine) -> Iterator[None]:
    """In the block, the first commit with *engine* is made, and then the connection fails."""
    failed = list[sa.Connection]()

    def committing(connection: sa.Connection) -> None:
        if not failed:
            failed.append(connection)
            connection.connection.commit()
            raise sa.exc.OperationalError("COMMIT", None, ConnectionError("the connection was lost"))

    sa.event.listen(engine, "commit", committing)
    try:
        yield
    finally:
        sa.event.remove(engine, "commit", committing)
    assert failed, "nothing was committed"
