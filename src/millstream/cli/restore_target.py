"""The target of a restore: a folder or a store that this node does not use."""

from __future__ import annotations

from pathlib import Path

from millstream.core.errors import InputError
from millstream.core.mounts import lies_in
from millstream.mill.restore.targets import FolderTarget, RestoreTarget, StoreTarget
from millstream.node import Node
from millstream.stores import open_provider
from millstream.stores.provider_schemes import object_prefix, provider_scheme
from millstream.stores.sources import is_source_url, local_folder


class TargetRefusedError(InputError):
    """Nothing is restored to this folder or store."""


def open_target(node: Node, to: str, space: str) -> RestoreTarget:
    """The target *to*, a folder's path or a store's URL, in which *space* is made where it is missing.

    Raises :class:`TargetRefusedError` for one that overlaps the node's folder or one of its stores.
    """
    if not to:
        raise TargetRefusedError("--to is empty: check whether a shell variable is unset")
    if "://" not in to and not to.startswith("memory:"):
        folder = Path(to).expanduser().absolute()
        _require_apart(node, folder, to)
        if folder.exists() and not folder.is_dir():
            raise TargetRefusedError(f"{to} is a file: name a folder")
        return FolderTarget(folder)
    if not provider_scheme(to).takes_copies or is_source_url(to):
        raise TargetRefusedError(f"invalid target {to!r}: name a folder, file:///folder or s3://bucket/prefix")
    if (place := local_folder(to)) is not None:
        _require_apart(node, place, to)
    else:
        _require_other_objects(node, to)
    store = open_provider(to, create=True)
    store.create_space(space)
    return StoreTarget(store, space)


def _require_apart(node: Node, folder: Path, to: str) -> None:
    places = {"the node's folder": node.folder}
    for name, store in node.stores.providers.items():
        place = local_folder(store.url)
        if place is not None:
            places[f"the store {name!r}"] = place
    for what, place in places.items():
        if lies_in(folder, place) or lies_in(place, folder):
            raise TargetRefusedError(f"{to} overlaps {what} ({place}): restore to another folder")


def _require_other_objects(node: Node, to: str) -> None:
    for name, store in node.stores.providers.items():
        if provider_scheme(store.url).in_bucket and object_prefix(store.url).overlaps(object_prefix(to)):
            raise TargetRefusedError(f"{to} overlaps the store {name!r} ({store.url}): restore to another prefix")
