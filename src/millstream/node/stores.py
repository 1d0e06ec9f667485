"""The storage providers of a node, the expected hashes of their copies, and changes on their way to the audit log."""

from __future__ import annotations

from collections.abc import Container

from millstream.core.cached import locked_cached_property
from millstream.mill.adoption.adopted_store import with_adopted_sources
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.change_guard import ChangeBudgets, ChangeGuard
from millstream.mill.manifest import Manifest
from millstream.mill.mount_check import MountCheck
from millstream.mill.reports.statistics import SpaceStatisticsTable
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart, lacks_database_file
from millstream.settings import Settings
from millstream.stores import CasStore, LocalStore, MemoryStore, Store, open_provider
from millstream.stores.audit import AuditedStore, AuditOutbox, settle_ended
from millstream.stores.mounted import MountedStore
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.stores.sources import local_folder
from millstream.stores.wrapper import StoreWrapper


class StoresPart:
    """The storage providers, and the tables about their copies."""

    def __init__(self, context: NodeContext, databases: DatabasesPart) -> None:
        self._context = context
        self._databases = databases

    @locked_cached_property
    def providers(self) -> ConfiguredStores:
        """The storage providers by id. None of their folders is made here: see :class:`DatabasesPart`."""
        settings, clock = self._context.settings, self._context.clock
        reads = self._context.reads
        mount_check = MountCheck(self.manifest.has_items, clock)
        processes = self._context.resources.enter_context(BulkProcesses(settings.mill.processes))
        stores = {
            name: MemoryStore(name) if reads and is_unmade(settings, name) else open_provider(url, processes=processes)
            for name, url in settings.store_urls.items()
        }
        stores = with_adopted_sources(stores, lambda: self._databases.own)
        audited = {name: self.audited(name, store) for name, store in stores.items()}
        settle_ended(audited.values())
        return ConfiguredStores(audited, clock, mount_check=mount_check)

    @locked_cached_property
    def manifest(self) -> Manifest:
        """The expected hash of each copy, and when it last matched."""
        return Manifest(self._databases.own, self._context.clock)

    @locked_cached_property
    def outbox(self) -> AuditOutbox:
        """Changes of audited stores that are on their way to the audit log."""
        return AuditOutbox(self._databases.own, self._context.clock)

    @locked_cached_property
    def change_guard(self) -> ChangeGuard:
        """Holds mass deletes and mass changes of copies for a person's approval."""
        limits = self._context.settings.mill.change_guard
        budgets = ChangeBudgets(limits.deletes, limits.changes, limits.least, limits.window, limits.approval)
        return ChangeGuard(self._databases.own, self._context.clock, self.manifest.count, budgets)

    @locked_cached_property
    def statistics(self) -> SpaceStatisticsTable:
        """How much each space held, and when."""
        return SpaceStatisticsTable(self._databases.own)

    def audited(self, name: str, store: Store, *, user: str = "mill") -> Store:
        """*store* (*name* in the settings), changed by *user*: audited if the settings say so."""
        settings = self._context.settings
        described = settings.stores.get(name)
        if described is None or not described.audited:
            return store
        return AuditedStore(store, self.outbox, name, account=settings.mill.account, user=user)

    def clear_drafts(self, names: Container[str]) -> None:
        """Remove, in those of the stores *names* that are local, what processes were writing when they ended."""
        for name, store in self.providers.items():
            if name in names:
                _clear_drafts(store)

    def prepare(self) -> None:
        """Open the manifest now."""
        _ = self.manifest


def _clear_drafts(store: Store) -> None:
    while isinstance(store, StoreWrapper):
        for mounted in store.mounted if isinstance(store, MountedStore) else ():
            _clear_drafts(mounted)
        store = store.store
    if isinstance(store, LocalStore | CasStore):
        store.clear_drafts()


def is_unmade(settings: Settings, name: str) -> bool:
    """Whether the store *name* is one of the node's own whose folder the first process that writes will make."""
    folder = local_folder(settings.store_urls[name])
    return lacks_database_file(settings) and settings.owns(name) and folder is not None and not folder.exists()
