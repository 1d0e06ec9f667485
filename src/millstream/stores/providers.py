"""From a URL to the store that it names."""

from __future__ import annotations

import os
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_to_bytes, urlsplit, urlunsplit

from millstream.stores.cas import CasStore
from millstream.stores.folder import FolderStore
from millstream.stores.folder.store import parse_folder_options
from millstream.stores.local.store import LocalStore
from millstream.stores.memory import MemoryStore
from millstream.stores.mounted import MountedStore
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.stores.protocol import Store, StoreInputError
from millstream.stores.provider_schemes import provider_scheme
from millstream.stores.throttled import ThrottledStore, split_rate


def open_provider(url: str, *, create: bool = False, processes: BulkProcesses | None = None) -> Store:
    """The store that *url* names.

    ``file:///folder`` (or ``file:relative/folder``) is a :class:`LocalStore`, ``cas:///folder`` a :class:`CasStore`,
    ``s3://bucket/prefix?endpoint=URL&profile=NAME`` an :class:`~millstream.stores.s3.S3Store`, ``memory://name`` a
    new, empty :class:`MemoryStore`; what other programs wrote is a source, which is never written to:
    ``folder:///folder?space=NAME&exclude=GLOB`` a :class:`FolderStore`, ``s3://bucket/prefix?space=NAME&exclude=GLOB``
    a :class:`~millstream.stores.s3.BucketStore`; ``mount=SPACE:URL`` in the query makes it a :class:`MountedStore`, and
    ``requests=RATE`` a :class:`ThrottledStore` with at most this many requests a second. With *create*, folders and
    buckets that are missing are made; without it, the first use of a missing folder is a
    :class:`StoreUnavailableError`. Many small items of local folders are done in *processes*, where there are some.
    Raises :class:`StoreInputError` for any other URL.
    """
    bare, rate = split_rate(url)
    if rate is not None:
        return ThrottledStore(open_provider(bare, create=create, processes=processes), rate)
    parts = urlsplit(url)
    options, mounts = _split_query(parts)
    base = _open_base(url, parts._replace(query=options), create, processes)
    mounted = dict(
        _mount(url, name, value, create, processes) for name, value in parse_qsl(mounts, keep_blank_values=True)
    )
    return MountedStore(base, mounted) if mounted else base


def _split_query(parts: SplitResult) -> tuple[str, str]:
    """The query's part that belongs to the store itself, and the part that names mounts."""
    pieces = [piece for piece in parts.query.split("&") if piece]
    own = [piece for piece in pieces if provider_scheme(parts).has_options and not piece.startswith("mount=")]
    return "&".join(own), "&".join(piece for piece in pieces if piece not in own)


def _open_base(url: str, parts: SplitResult, create: bool, processes: BulkProcesses | None) -> Store:
    if parts.scheme == "s3":
        from millstream.stores.s3 import BucketStore, S3Store, parse_address

        address = parse_address(urlunsplit(parts))
        return S3Store(address, create=create) if address.space is None else BucketStore(address)
    if parts.fragment:
        raise StoreInputError(f"invalid store URL {url!r}: write '#' in a folder name as %23")
    if parts.scheme == "memory":
        return MemoryStore(unquote(parts.netloc + parts.path) or "store")
    if not provider_scheme(parts).in_folder:
        raise StoreInputError(
            f"invalid store URL {url!r}: write file:///folder, folder:///folder, cas:///folder, "
            "s3://bucket or memory://name"
        )
    if parts.netloc not in ("", "localhost") or not parts.path or "\0" in unquote(parts.path):
        raise StoreInputError(
            f"invalid store URL {url!r}: it must name a local folder, as {parts.scheme}:///folder with three slashes"
        )
    folder = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.scheme == "folder":
        space, exclude = parse_folder_options(url, parse_qsl(parts.query, keep_blank_values=True))
        return FolderStore(folder, space=space, exclude=exclude, processes=processes)
    if parts.scheme == "cas":
        return CasStore(folder, create=create)
    if parts.scheme == "file":
        return LocalStore(folder, create=create, processes=processes)
    raise StoreInputError(
        f"no storage provider for the scheme {parts.scheme!r}: open it in open_provider (stores/providers.py)"
    )


def _mount(url: str, name: str, value: str, create: bool, processes: BulkProcesses | None) -> tuple[str, Store]:
    space, colon, target = value.partition(":")
    if name != "mount" or not colon:
        raise StoreInputError(f"invalid store URL {url!r}: its query must be mount=SPACE:URL, not {name}={value}")
    return unquote(space), open_provider(target, create=create, processes=processes)
