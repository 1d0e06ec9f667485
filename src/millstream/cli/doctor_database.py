"""Checks of a node's database on a server: the size of statements, and files left behind in the folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa

from millstream.anchoring.cut_manifest import MAX_CONTENT_BYTES, MAX_REJECTS
from millstream.batching.default_limits import BATCHING_FOLDER, LIMITS_OF_NEW_NODES, DefaultLimits, read_default_limits
from millstream.batching.errors import ConfigError
from millstream.cli.doctor_machine import Check
from millstream.core.documents import DatabaseDocuments
from millstream.core.errors import MillstreamError
from millstream.settings import Settings

_MESSAGE_BYTES = 20
"""Bytes that a message adds to the statement that stores an anchor: its id (8 bytes) and the index of its batch (4
bytes); the client escapes each zero byte as two. Measured: 17 to 19.4 bytes."""

_REJECT_BYTES = 40
"""Bytes that a rejected message adds: its id, its reason with a line break (up to 25 bytes), and the escapes."""

_LEAST_LINE_BYTES = 71
"""The shortest line of a message in a batch file (docs/formats/records.md): empty texts and numbers of one digit."""

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
            yield _packet(settings, _default_limits(engine), packet)
        if left := left_over_states(settings):
            yield _left_over(left, settings.folder, moved=was_moved(engine))
    except (sa.exc.SQLAlchemyError, ConfigError):
        return  # which the node names when it is opened
    finally:
        engine.dispose()


def _default_limits(engine: sa.Engine) -> DefaultLimits:
    """The limits of batches that the node on *engine* has, or will record at its start."""
    from millstream.core.writers_lock import is_made

    return read_default_limits(DatabaseDocuments(engine)) if is_made(engine) else LIMITS_OF_NEW_NODES


def _packet(settings: Settings, limits: DefaultLimits, packet: int) -> Check:
    """Whether *packet* (bytes) is enough for the largest anchor of batches with the default *limits*."""
    needed = _anchor_messages(settings, limits) * _MESSAGE_BYTES + MAX_REJECTS * _REJECT_BYTES
    megabytes = -(-needed >> 20)
    return Check(
        "database packets",
        packet >= needed,
        f"max_allowed_packet = {packet >> 20}M; the statement of an anchor has up to {megabytes}M",
        "the message ids of one anchor, which are one row",
        f"max_allowed_packet = {megabytes}M in the server's configuration",
    )


def _anchor_messages(settings: Settings, limits: DefaultLimits) -> int:
    """The most messages in the batches of an anchor: as many as their number or the size of the files allows."""
    counts = [config.max_count for config in settings.batching.rules_with(limits).configs]
    bounds = [count for count in counts if isinstance(count, int)]
    most = MAX_CONTENT_BYTES // _LEAST_LINE_BYTES
    return min(most, settings.anchoring.max_batches * max(bounds)) if len(bounds) == len(counts) else most


def left_over_states(settings: Settings) -> Sequence[Path]:
    """The unused files in the folder of the node: their content is on servers."""
    from millstream.node.context import DATABASE

    folder = settings.folder
    patterns = [DATABASE, f"{BATCHING_FOLDER}/*.state", "producers/*.json"]
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
