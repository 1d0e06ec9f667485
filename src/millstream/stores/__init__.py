"""Storage providers: spaces of content items with properties, and what is known of their checksums.

:func:`open_provider` opens a store by URL; :class:`LocalStore` keeps items in a folder, :class:`MemoryStore` in memory,
:class:`CasStore` shows a folder of content-addressed files as a store, :class:`FolderStore` a folder of any files that
other programs write (a source: read, never written to), :class:`MountedStore` joins stores into one,
:class:`ThrottledStore` limits the requests to one, and
:class:`millstream.stores.s3.S3Store` (extra ``s3``) keeps items in a bucket of S3. All of them are :class:`Store` and
pass :class:`millstream.testing.stores.StoreConformance`. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.stores.cas import CAS_SPACE, CasStore
    from millstream.stores.folder import FolderStore, folder_url
    from millstream.stores.hashing import Digests, copy_stream, hash_stream
    from millstream.stores.local.store import LocalStore
    from millstream.stores.memory import MemoryStore
    from millstream.stores.mounted import MountedStore
    from millstream.stores.protocol import (
        DEFAULT_MIMETYPE,
        AccessDeniedError,
        AlreadyExistsError,
        Checksum,
        ChecksumMismatchError,
        ChecksumOrigin,
        ContentIdTooLongError,
        ContentTooLargeError,
        DamagedRecordError,
        Entry,
        EntryKind,
        ItemChangedError,
        ItemInfo,
        ItemNotFoundError,
        NoSuchStoreError,
        SpaceAccess,
        SpaceNotEmptyError,
        SpaceNotFoundError,
        Store,
        StoreCredentialsError,
        StoreError,
        StoreInputError,
        StoreRefusedError,
        StoreUnavailableError,
        UnreadableError,
        all_entries,
    )
    from millstream.stores.providers import open_provider
    from millstream.stores.sources import Problem, find_entry, find_problems, needs_adoption, problem_of
    from millstream.stores.throttled import ThrottledStore

__all__ = [
    "CAS_SPACE",
    "DEFAULT_MIMETYPE",
    "AccessDeniedError",
    "AlreadyExistsError",
    "CasStore",
    "Checksum",
    "ChecksumMismatchError",
    "ChecksumOrigin",
    "ContentIdTooLongError",
    "ContentTooLargeError",
    "DamagedRecordError",
    "Digests",
    "Entry",
    "EntryKind",
    "FolderStore",
    "ItemChangedError",
    "ItemInfo",
    "ItemNotFoundError",
    "LocalStore",
    "MemoryStore",
    "MountedStore",
    "NoSuchStoreError",
    "Problem",
    "SpaceAccess",
    "SpaceNotEmptyError",
    "SpaceNotFoundError",
    "Store",
    "StoreCredentialsError",
    "StoreError",
    "StoreInputError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "ThrottledStore",
    "UnreadableError",
    "all_entries",
    "copy_stream",
    "find_entry",
    "find_problems",
    "folder_url",
    "hash_stream",
    "needs_adoption",
    "open_provider",
    "problem_of",
]

__getattr__ = lazy_names(__name__)
