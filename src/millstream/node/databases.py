"""The databases of a node: its own, and those that the settings name for single parts."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from millstream.batching.default_limits import record_default_limits
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS
from millstream.core.database_server import end_idle_transactions, open_server
from millstream.core.documents import DatabaseDocuments, Documents, FolderDocuments
from millstream.core.retry import RetryPolicy
from millstream.core.secrets import safe_url
from millstream.core.sql import NoDatabaseError, SqlBusyError
from millstream.core.sql_failures import describe_sql_failure
from millstream.core.sqlite_file import open_database
from millstream.core.writers_lock import is_made, lock_writers, require_known_schema
from millstream.node.context import DATABASE, NodeContext
from millstream.node.moving import require_finished, was_moved
from millstream.settings import Settings
from millstream.stores import open_provider
from millstream.stores.audit.holders import HolderState, find_elsewhere

if TYPE_CHECKING:
    from millstream.node.members.node_members import NodeMembers

TABLES = ("anchor_", "audit_", "console_", "mill_", "node_", "queue_", "registry_")
"""Prefixes of the names of the tables in a node's database."""

_IDLE_LEASES = 2
"""After how many leases of a member the server ends a transaction that gets no statement: its process is stopped."""

_CACHE_KIB = 16 << 10
"""Memory of a connection: batches are indexed by their hashes, so any page may be next."""

_ONCE = RetryPolicy(attempts=1)


def has_database(settings: Settings, *, patience: RetryPolicy = _ONCE) -> bool:
    """Whether there is a database of a node of *settings* already; its server is asked with *patience*.

    Raises :class:`~millstream.core.sql.SqlBusyError` or :class:`~millstream.core.sql.SqlInputError` where its server
    does not tell.
    """
    if not settings.node.database:
        return not _is_empty(settings.folder)
    try:
        engine = open_server(settings.node.database, patience=patience, create=False)
    except NoDatabaseError:
        return False
    try:
        return _has_node(engine)
    except sa.exc.DBAPIError as error:
        raise SqlBusyError(f"the node's database {describe_sql_failure(error)}") from error
    finally:
        engine.dispose()


def _has_node(engine: sa.Engine) -> bool:
    """Whether the database of *engine*, on a server, has the tables of a node, also those of a move."""
    return is_made(engine) or was_moved(engine)


def _is_empty(folder: Path) -> bool:
    """Whether the file of the database in *folder* is absent, or has nothing: so a restore on a full disk leaves it."""
    path = folder / DATABASE
    return not path.exists() or not path.stat().st_size


def lacks_database_file(settings: Settings) -> bool:
    """Whether the node's own database is a file that is absent or empty, so that nothing is recorded: the node was
    never used, or its database is lost."""
    return not settings.node.database and _is_empty(settings.folder)


@contextlib.contextmanager
def open_tables(settings: Settings, url: str) -> Iterator[sa.Engine]:
    """The database at *url*, or in the node's folder where it is empty, to move tables out of it or into it.

    Raises what :attr:`DatabasesPart.own` does.
    """
    from millstream.node.members.upgrade import require_no_older

    engine = open_server(url) if url else open_database(settings.folder / DATABASE, TABLES)
    try:
        if url and is_made(engine):
            lock_writers(engine, require_no_older)
        yield engine
    finally:
        engine.dispose()


class DatabasesPart:
    """Opens each database once. Thread-safe."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._is_new = _is_empty(context.folder)
        self._engines: dict[str, sa.Engine] = {}
        self._connecting = threading.Lock()
        self._each_connecting: dict[str, threading.Lock] = {}

    @locked_cached_property
    def own(self) -> sa.Engine:
        """The node's own database: states of batches, the index of anchored messages, the manifest of copies.

        A new node first makes the folders of its own stores, and records its default limits of batches: a database
        that is there says that they were made, so that one that is missing later is an unmounted disk, and not a start
        that was cut short. A node that is only read makes nothing: without a database it has the tables of a new node,
        which end with the process. Raises
        :class:`~millstream.core.sqlite_file.DatabaseFileError`, or for one on a server
        :class:`~millstream.core.sql.SqlBusyError` or :class:`~millstream.core.sql.SqlInputError`, where it cannot be
        used; :class:`~millstream.core.writers_lock.NewerSchemaError` where a later version of the program has changed
        the tables, and :class:`~millstream.node.members.upgrade.OlderMembersError` where this one would have to, and
        members of an earlier version serve the node.
        """
        context = self._context
        if context.settings.node.database:
            from millstream.node.members.upgrade import require_no_older

            engine = self._server
            find_elsewhere(engine, self._holder_state)
            if not is_made(engine):
                if context.reads:  # it was moved, and no process has served it since
                    return engine
                self._make_stores()
                if not was_moved(engine):
                    record_default_limits(DatabaseDocuments(engine))
            lock_writers(engine, require_no_older)
            return engine
        folder = context.folder
        if self._is_new and context.reads:
            folder = Path(context.resources.enter_context(tempfile.TemporaryDirectory(prefix="millstream-")))
        elif self._is_new:
            self._make_stores()
            record_default_limits(FolderDocuments(folder))
        engine = open_database(folder / DATABASE, TABLES, cache_kib=_CACHE_KIB)
        context.resources.callback(engine.dispose)
        require_finished(engine)
        return engine

    @locked_cached_property
    def _server(self) -> sa.Engine:
        """The node's own database on a server, whose tables may still have an earlier version."""
        url = self._context.settings.node.database
        engine = self._connect(url)
        require_finished(engine)
        if self._context.reads and not _has_node(engine):
            raise NoDatabaseError(
                f"the database {safe_url(url)} has no tables of a node: correct node.database in the settings; "
                "the tables of a new node are made when `millstream serve` starts for the first time"
            )
        require_known_schema(engine)
        return engine

    @locked_cached_property
    def members(self) -> NodeMembers:
        """The processes that serve the node, where its own database is on a server."""
        from millstream.node.members.node_members import NodeMembers

        return NodeMembers(self._context, lambda: self._server, self.prepare)

    def _holder_state(self, holder: str) -> HolderState:
        return self.members.table.holder_state(holder)

    def _make_stores(self) -> None:
        settings = self._context.settings
        for name, url in settings.store_urls.items():
            if settings.owns(name):
                open_provider(url, create=True)

    def at(self, url: str) -> sa.Engine:
        """The database at *url*, opened once; the node's own where *url* is empty."""
        url = url or self._context.settings.node.database  # whose own engine takes turns in writing
        if not url:
            return self.own
        with self._connecting:
            alone = self._each_connecting.setdefault(url, threading.Lock())
        with alone:  # a server that does not answer does not hold up the others
            if url not in self._engines:
                self._engines[url] = self._connect(url)
            return self._engines[url]

    def _connect(self, url: str) -> sa.Engine:
        """The database at *url*, on a server, which ends the transactions of a process that is stopped."""
        context = self._context
        engine = open_server(url, context.clock, create=not context.reads)
        end_idle_transactions(engine, _IDLE_LEASES * context.settings.node.lease / MICROSECONDS)
        context.resources.callback(engine.dispose)
        return engine

    @locked_cached_property
    def documents(self) -> Documents:
        """The small documents of parts of the node: in its folder, or in its database where that is on a server."""
        on_server = self._context.settings.node.database
        return DatabaseDocuments(self.own) if on_server else FolderDocuments(self._context.folder)

    def prepare(self) -> None:
        """Open the node's own database now."""
        _ = self.own
