"""Items that a copy's store held before this node wrote to it: they are compared by their bytes before any is replaced.

Whoever lost the node's folder has copies that nobody remembers. Where one of them differs from the source, either may
be the good one, so nothing of that copy is replaced until people say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.core.errors import NotFoundError
from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.item_ref import ItemRef
from millstream.mill.merge_join import groups, outer_join
from millstream.mill.providers import Providers

_GROUP = 500


def find_differing(target: AdoptionTarget, providers: Providers, space: str, destination: str) -> Iterator[str]:
    """The ids of items in *destination* that the manifest does not know there, and that differ from the source.

    Raises :class:`~millstream.stores.StoreError` where the store cannot be listed or read.
    """
    listed = outer_join(providers.entries(destination, space), target.manifest.scan(destination, space))
    unknown = (one.left for one in listed if one.left is not None and one.right is None)
    for group in groups(unknown, _GROUP):
        adopted = target.catalog.get_many(target.store, space, [entry.content_id for entry in group])
        for entry in group:
            item = adopted.get(entry.content_id)
            if item is None or not item.is_there:
                continue
            if entry.size != item.size or _differs(
                providers, ItemRef(destination, space, item.content_id), item.sha256
            ):
                yield item.content_id


def _differs(providers: Providers, place: ItemRef, sha256: str) -> bool:
    try:
        return providers.hash(place).sha256 != sha256
    except NotFoundError:
        return False
