"""The message logs of a node, and their upkeep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS, Clock
from millstream.log import LogError, LogNotFoundError, LogSpec, LogStore
from millstream.log.backend_schemes import store_files
from millstream.log.backends.memory import AbsentBackend
from millstream.log.upkeep.upkeep_thread import UpkeepThread
from millstream.node.context import NodeContext, is_node
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store

_CONNECTED = "_connected"
"""The end of the names of the gauges of ingests and relays, with the log as their label."""


class LogsPart:
    """The store of the logs, and the rules by which they are moved and trimmed."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self.suspended_roles: dict[str, str] = {}
        """The roles of this process that are suspended, such as ``ingest weather``, and why."""

    @locked_cached_property
    def store(self) -> LogStore:
        """The store of the message logs. Where the node is only read, one that the settings name and that is not there
        is a :class:`~millstream.log.LogNotFoundError`; the one in the folder is then as if it had no logs."""
        context = self._context
        store = context.resources.enter_context(self._open())
        outputs = {path.stem for path in (context.folder / BATCHING_FOLDER).glob("*.state")}  # of earlier nodes
        kinds = store.kinds() if outputs else {}
        for name in outputs.intersection(name for name, kind in kinds.items() if kind == "application"):
            with contextlib.suppress(LogError):  # it may be read-only
                store.log(LogSpec(name, kind="batches"))  # one that an earlier release made has no kind
        return store

    def _open(self) -> LogStore:
        context, settings = self._context, self._context.settings
        if context.reads and (unmade := unmade_store(settings, context.clock)) is not None:
            return unmade
        return open_log_store(
            settings.log_url,
            clock=context.clock,
            create=not context.reads,
            bucket_linger=settings.log.bucket_linger / MICROSECONDS,
            bucket_commits=settings.log.bucket_commits,
        )

    def failing_roles(self) -> Mapping[str, str]:
        """The roles of this process that are suspended, and those whose source of messages, such as that of ``ingest
        weather``, is not connected; and why, empty where that is not known."""
        failing = dict[str, str]()
        for (name, labels), value in self._context.metrics.figures().gauges.items():
            if name.endswith(_CONNECTED) and not value:
                failing[f"{name.removesuffix(_CONNECTED)} {dict(labels).get('log', '')}"] = ""
        return failing | self.suspended_roles

    def upkeep(self, say: Callable[[str], object]) -> contextlib.AbstractContextManager[object]:
        """Moves and trims the logs by their rules while its block is open; *say* gets a line where it cannot."""
        settings = self._context.settings.log
        if not settings.upkeep:
            return contextlib.nullcontext()
        seconds = settings.upkeep / MICROSECONDS
        return UpkeepThread(self.store, self._context.clock, settings.rules, seconds=seconds, say=say)

    def prepare(self) -> None:
        """Open the store now."""
        _ = self.store


def unmade_store(settings: Settings, clock: Clock) -> LogStore | None:
    """A store without logs, for those who only read a node whose own one will be made by the first process that writes.

    None where it was made, where the settings name another one, and where the folder is not a node's.
    """
    files = store_files(settings.log_url)
    if settings.log.store or files is None or files.exists() or not is_node(settings.folder):
        return None
    return LogStore(AbsentBackend(settings.log_url, clock), clock)


def open_to_read(settings: Settings, clock: Clock, *, read_only: bool = True) -> LogStore:
    """The log store of *settings* for a command that only reads: :func:`unmade_store`, or the one that is there.

    Raises :class:`~millstream.log.LogNotFoundError` where the settings name one that does not exist, and where the one
    in the folder is lost.
    """
    if (unmade := unmade_store(settings, clock)) is None:
        return open_log_store(settings.log_url, clock, create=False, read_only=read_only)
    from millstream.node.missing_databases import missing_logs

    if (lost := missing_logs(settings)).traces:
        raise LogNotFoundError(
            f"{lost.names[0]} is missing in {settings.folder}, but {lost.traces}: restore it from a backup before a "
            "process of the node starts, which would create an empty one; see `millstream status`"
        )
    return unmade
