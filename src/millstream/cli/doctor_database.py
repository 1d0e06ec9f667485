"""Checks of a node's database on a server: the size of statements, and files left behind in the folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa

from millstream.cli.doctor_machine import Check
from millstream.core.amounts import size_text
from millstream.core.errors import MillstreamError
from millstream.settings import Settings

_MESSAGE_BYTES = 20
"""Bytes that a message adds to the statement that stores an anchor: its id (8 bytes) and the index of its batch (4
bytes); the client escapes each zero byte as two. Measured: 17 to 19.4 bytes."""

_LARGEST_PACKET = 1 << 30
"""The largest ``max_allowed_packet`` of MariaDB and MySQL."""

_MOST_NAMED = 10


def check_database(settings: Settings) -> Iterator[Check]:
    """Checks that the server of ``node.database`` accepts the statement of an anchor, and finds unused files."""
    from millstream.core.database_server import open_server
    from millstream.core.retry import RetryPolicy
    from millstream.node.moving import was_moved

    if not settings.node.database:
        return
    try:
        engine = open_server(settings.node.database, patience=RetryPolicy(attempts=1))
    except MillstreamError:
        return  # which other checks name
    try:
        if engine.dialect.name in ("mysql", "mariadb"):
            with engine.connect() as connection:
                packet = int(connection.scalar(sa.text("SELECT @@GLOBAL.max_allowed_packet")) or 0)
            yield _packet(settings, packet)
        if left := left_over_states(settings):
            yield _left_over(left, settings.folder, moved=was_moved(engine))
    except sa.exc.SQLAlchemyError:
        return
    finally:
        engine.dispose()


def _packet(settings: Settings, packet: int) -> Check:
    """Whether *packet* (bytes) is enough for an anchor; optional if batches have no maximum count."""
    counts = [config.max_count for config in settings.batching.rules.configs]
    known = [count for count in counts if isinstance(count, int)]
    bounded = len(known) == len(counts)
    needed = _LARGEST_PACKET
    if bounded:
        needed = min(needed, settings.anchoring.max_batches * max(known) * _MESSAGE_BYTES)
    return Check(
        "database packets",
        packet >= needed,
        f"max_allowed_packet = {size_text(packet)}: an anchor of {packet // _MESSAGE_BYTES:,} messages fits",
        "the message ids of one anchor, which are one row",
        f"max_allowed_packet = {max(1, -(-needed >> 20))}M in the server's configuration, or a smaller "
        "anchoring.max_batches",
        optional=not bounded,
    )


def left_over_states(settings: Settings) -> Sequence[Path]:
    """The unused files in the folder of the node: their content is on servers."""
    from millstream.node.context import DATABASE

    folder = settings.folder
    patterns = [DATABASE, "batching/*.state", "producers/*.json"]
    if settings.log.store and settings.log_url != f"sqlite:///{folder / 'log.db'}":
        patterns.append("log.db")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def _left_over(left: Sequence[Path], folder: Path, *, moved: bool) -> Check:
    names = [str(path.relative_to(folder)) for path in left]
    shown = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED:,} more" if names[_MOST_NAMED:] else "")
    aside = shlex.quote(f"{folder}-before")
    if moved:
        fix = (
            f"they date from the move to the server: mv them to {aside}, and delete them once the backups contain the "
            "database"
        )
    else:
        fix = (
            "the database was not filled from them: if the node lacks what they contain, stop it and run `millstream "
            f"node move` first; else mv them to {aside}"
        )
    return Check(
        "left-over states", False, f"{shown}: not read by any process", "a folder that is up to date", fix, True
    )
