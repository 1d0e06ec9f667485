"""Copies that are no copies: a file that is the very file of the source, or of another copy (a hard link)."""

from __future__ import annotations

import os
import stat
from typing import Protocol, runtime_checkable

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.item_ref import ItemRef
from millstream.stores.protocol import Store, StoreError
from millstream.stores.sources import is_source_url


@runtime_checkable
class FileBackedStore(Protocol):
    """A store whose items are files of this machine."""

    def file_status(self, space: str, content_id: str) -> os.stat_result:
        """The status of an item's file. Raises :class:`~millstream.stores.ItemNotFoundError`."""
        ...


def find_shared_store(providers: ConfiguredStores, place: ItemRef, *, of_each: bool = False) -> str | None:
    """The store whose file of the item is also the file at *place*; None if it is a separate file.

    Of several stores that share a file one counts as its owner: the source, or else the first. For that one the answer
    is None, unless it is asked *of_each*.
    """
    status = _file_status(providers[place.store], place)
    if status is None or status.st_nlink < 2:
        return None
    for name, store in sorted(providers.items()):
        if name == place.store or not (of_each or name < place.store or is_source_url(store.url)):
            continue
        other = _file_status(store, place)
        if other is not None and (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino):
            return name
    return None


def _file_status(store: Store, place: ItemRef) -> os.stat_result | None:
    """The status of a plain file that has the item; None where it is not in one, or cannot be looked at."""
    found: object = store
    while found is not None and not isinstance(found, FileBackedStore):
        found = getattr(found, "store", None) or getattr(found, "source", None)
    if found is None:
        return None
    try:
        status = found.file_status(place.space, place.content_id)
    except StoreError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
