"""The databases of a node: its own, and those that the settings name for single parts."""

from __future__ import annotations

import threading

import sqlalchemy as sa

from millstream.core.cached import locked_cached_property
from millstream.core.database_server import open_server
from millstream.core.sqlite_file import open_database
from millstream.node.context import DATABASE, NodeContext
from millstream.stores import open_provider

TABLES = ("anchor_", "audit_", "console_", "mill_", "queue_", "registry_")
"""What the names of the tables in a node's own database begin with."""

_CACHE_KIB = 16 << 10
"""Memory of a connection: batches are indexed by their hashes, so any page may be next."""


class DatabasesPart:
    """Opens each database once. Thread-safe."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._is_new = not (context.folder / DATABASE).exists()
        self._engines: dict[str, sa.Engine] = {}
        self._connecting = threading.Lock()

    @locked_cached_property
    def own(self) -> sa.Engine:
        """The node's own database: states of batches, the index of anchored messages, the manifest of copies.

        A new node makes the folders of its own stores first: a database that is there says that they were made, so that
        one that is missing later is an unmounted disk, and not a start that was cut short. Raises
        :class:`~millstream.core.sqlite_file.DatabaseFileError` where it cannot be used.
        """
        settings, path = self._context.settings, self._context.folder / DATABASE
        if self._is_new:
            for name, url in settings.store_urls.items():
                if settings.owns(name):
                    open_provider(url, create=True)
        engine = open_database(path, TABLES, cache_kib=_CACHE_KIB)
        self._context.resources.callback(engine.dispose)
        return engine

    def at(self, url: str) -> sa.Engine:
        """The database at *url*, opened once; the node's own where *url* is empty."""
        if not url:
            return self.own
        with self._connecting:
            if url not in self._engines:
                self._engines[url] = open_server(url, self._context.clock)
                self._context.resources.callback(self._engines[url].dispose)
            return self._engines[url]

    def prepare(self) -> None:
        """Open the node's own database now."""
        _ = self.own
