"""Checks of a node's database on a server: the size of statements, and files left behind in the folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa

from millstream.anchoring.cut_limits import least_statement_bytes
from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.batching.local_state import is_newer
from millstream.cli.doctor_machine import Check
from millstream.core.documents import DatabaseDocuments, FileDocument
from millstream.core.errors import MillstreamError
from millstream.core.sql import NoDatabaseError
from millstream.settings import Settings

_MOST_NAMED = 10


def check_database(settings: Settings) -> Iterator[Check]:
    """Checks that the server of ``node.database`` accepts the statement of a batch, and finds unused files."""
    from millstream.core.database_server import largest_statement, open_server
    from millstream.core.retry import RetryPolicy
    from millstream.node.moving import was_moved

    if not settings.node.database:
        return
    try:
        engine = open_server(settings.node.database, patience=RetryPolicy(attempts=1), create=False)
    except NoDatabaseError:
        if left := left_over_states(settings):
            yield _left_over(left, settings.folder, moved=False)
        return
    except MillstreamError:
        return  # which other checks name
    try:
        packet = largest_statement(engine)
        if packet is not None:
            yield _packet(settings, packet)
        left = left_over_states(settings)
        unsaved = [path for path in left if _is_unsaved(path, engine)]
        if unsaved:
            yield _unsaved(unsaved, settings.folder)
        if others := [path for path in left if path not in unsaved]:
            yield _left_over(others, settings.folder, moved=was_moved(engine))
    except (sa.exc.SQLAlchemyError, MillstreamError):
        return  # which the node names when it is opened
    finally:
        engine.dispose()


def _packet(settings: Settings, packet: int) -> Check:
    """Whether *packet* (bytes) is enough for the largest batch."""
    needed = least_statement_bytes(settings.anchoring.file_bytes)
    megabytes = -(-needed >> 20)
    return Check(
        "database packets",
        packet >= needed,
        f"max_allowed_packet = {packet >> 20}M; the statement of a batch has up to {megabytes}M",
        "batches in the database until they are anchored",
        f"max_allowed_packet = {megabytes}M in the server's configuration",
    )


def left_over_states(settings: Settings) -> Sequence[Path]:
    """The unused files in the folder of the node: their content is on servers."""
    from millstream.node.context import DATABASE

    folder = settings.folder
    patterns = [DATABASE, f"{BATCHING_FOLDER}/*.state", "producers/*.json"]
    if settings.log.store and settings.log_url != f"sqlite:///{folder / 'log.db'}":
        patterns.append("log.db")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def _is_unsaved(path: Path, engine: sa.Engine) -> bool:
    """Whether *path* has a newer state of a batch service than the database of *engine*."""
    if path.parent.name != BATCHING_FOLDER:
        return False
    saved = DatabaseDocuments(engine).document(f"{BATCHING_FOLDER}/{path.name}")
    return is_newer(FileDocument(path).read(), saved.read())


def _unsaved(unsaved: Sequence[Path], folder: Path) -> Check:
    return Check(
        "unsaved states",
        False,
        f"{_shown(unsaved, folder)}: newer than in the node's database",
        "a database that is up to date",
        "start the stream or service of this output on this host, unless it runs: it continues from the newer state",
        True,
    )


def _shown(paths: Sequence[Path], folder: Path) -> str:
    names = [str(path.relative_to(folder)) for path in paths]
    return ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED:,} more" if names[_MOST_NAMED:] else "")


def _left_over(left: Sequence[Path], folder: Path, *, moved: bool) -> Check:
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
        "left-over states",
        False,
        f"{_shown(left, folder)}: not read by any process",
        "a folder that is up to date",
        fix,
        True,
    )
