"""The message logs of a node, and their upkeep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS
from millstream.log import LogError, LogSpec, LogStore
from millstream.log.upkeep.upkeep_thread import UpkeepThread
from millstream.node.context import NodeContext
from millstream.stores.tiers import open_log_store


class LogsPart:
    """The store of the logs, and the rules by which they are moved and trimmed."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    @locked_cached_property
    def store(self) -> LogStore:
        """The store of the message logs. Where the node is only read, one that the settings name and that is not there
        is a :class:`~millstream.log.LogNotFoundError`."""
        context = self._context
        linger = context.settings.log.bucket_linger / MICROSECONDS
        store = context.resources.enter_context(
            open_log_store(
                context.settings.log_url,
                clock=context.clock,
                create=not (context.reads and context.settings.log.store),
                bucket_linger=linger,
                bucket_commits=context.settings.log.bucket_commits,
            )
        )
        outputs = {path.stem for path in (context.folder / BATCHING_FOLDER).glob("*.state")}  # of earlier nodes
        kinds = store.kinds() if outputs else {}
        for name in outputs.intersection(name for name, kind in kinds.items() if kind == "application"):
            with contextlib.suppress(LogError):  # it may be read-only
                store.log(LogSpec(name, kind="batches"))  # one that an earlier release made has no kind
        return store

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
