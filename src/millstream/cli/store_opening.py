"""The store that a command names: one of the settings, or a URL."""

from __future__ import annotations

import click

from millstream.cli.change_log import os_user
from millstream.node import Node
from millstream.node.stores import is_unmade
from millstream.settings import Settings
from millstream.stores import MemoryStore, NoSuchStoreError, Store, open_provider


def open_named_store(settings: Settings, name: str, *, create: bool = False, reads: bool = False) -> Store:
    """The store *name*, of the settings or by URL, as this user changes it, or only *reads* it.

    Raises :class:`NoSuchStoreError`.
    """
    urls = settings.store_urls
    if name in urls:
        if reads:
            return MemoryStore(name) if is_unmade(settings, name) else open_provider(urls[name])
        opened = open_provider(urls[name], create=create or settings.owns(name))
        return _audited(settings, name, opened)
    if ":" not in name:
        known = ", ".join(sorted(urls))
        raise NoSuchStoreError(f"unknown store {name!r}: name one of the configured stores ({known}), or give a URL")
    return open_provider(name, create=create)


def _audited(settings: Settings, name: str, opened: Store) -> Store:
    """The store as this user changes it; the node's database is open until the command ends."""
    if name not in settings.stores or not settings.stores[name].audited:
        return opened
    node = click.get_current_context().with_resource(Node.open(settings, create=True))
    return node.stores.audited(name, opened, user=os_user())
