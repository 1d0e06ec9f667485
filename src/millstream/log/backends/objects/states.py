"""Small states as objects: each version is created once, and older ones are deleted in blocks.

Versions of a block are deleted only after the mark of that block was created, so that a create of an old version,
which finds its name free again, is not believed.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.clock import Clock
from millstream.log.backend import VersionedValue
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.dense_names import find_newest
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.small_objects import decode_object
from millstream.log.backends.objects.state_keys import StateKeys
from millstream.log.errors import DamagedLogError, StorageError, StorageUnavailableError

BLOCK = 64
"""How many versions are deleted together."""


class _StateObject(msgspec.Struct, frozen=True):
    value: bytes
    nonce: str


class States:
    """The states of one log. *initial* are those that it was made with, as version 1. Thread-safe.

    *pool* is where requests run side by side.
    """

    def __init__(
        self, bucket: Bucket, names: LogNames, clock: Clock, pool: ThreadPoolExecutor, initial: Mapping[str, bytes]
    ) -> None:
        self._bucket, self._names, self._clock, self._initial = bucket, names, clock, initial
        self._keys = StateKeys(bucket, names, clock, pool)
        self._lock = threading.Lock()
        self._known: dict[str, VersionedValue] = {}
        self._gone: dict[str, int] = {}

    def get(self, key: str) -> VersionedValue:
        """The newest version of the state *key*. Raises :class:`DamagedLogError` where it is gone."""
        while True:
            before = self._gone.get(key, 0)
            known = self._known_version(key)
            version, data = find_newest(lambda number: self._bucket.get(self._names.state(key, number)), known.version)
            found = known if data is None else VersionedValue(version, self._decode(key, version, data))
            gone = self._find_gone(key)
            if _block(found.version) > gone:
                self._learn(key, found)
                return found
            if gone == before:  # a mark is created after the first version of the block behind it
                raise DamagedLogError(
                    f"object {self._names.state(key, found.version + 1)!r} is missing from the bucket: later versions "
                    "of this state were deleted. Restore them from a copy of the bucket"
                )

    def put(self, key: str, value: bytes, version: int) -> bool:
        """Create version *version* + 1; False where the newest is not *version*."""
        if self.get(key).version != version:
            return False
        if version == 0:
            self._keys.add(key)
        new = VersionedValue(version + 1, value)
        data = msgspec.json.encode(_StateObject(value, secrets.token_hex(8)))
        made = create_object(self._bucket, self._names.state(key, new.version), data, self._clock)
        if self._find_gone(key) >= _block(new.version):
            raise StorageUnavailableError(
                f"state {key!r} of log {self._names.log!r} was changed by another process at the same time, and it is "
                "unknown whether this change was stored: read the state again"
            )
        if not made:
            return False
        self._learn(key, new)
        with contextlib.suppress(StorageError):  # a later put continues with it
            for block in range(self._gone[key] + 1, version // BLOCK + 1):
                self._delete_block(key, block)
        return True

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys that begin with *prefix*, sorted; some may have no version yet."""
        keys = {*self._initial, *self._keys.refresh()}
        return sorted(key for key in keys if key.startswith(prefix))

    def _decode(self, key: str, version: int, data: bytes) -> bytes:
        return decode_object(self._names.state(key, version), data, _StateObject).value

    def _delete_block(self, key: str, block: int) -> None:
        """Delete the versions of *block*, all of which were replaced; those of the blocks before are deleted."""
        create_object(self._bucket, self._names.state_gone(key, block), b"", self._clock)
        with self._lock:
            self._gone[key] = max(block, self._gone.get(key, 0))
        last = block * BLOCK
        first = max(last - 2 * BLOCK, 0) + 1  # with the block before, of which a crash may have left some
        self._bucket.delete([self._names.state(key, version) for version in range(first, last + 1)])

    def _find_gone(self, key: str) -> int:
        """The last block of versions that may be deleted."""
        known = self._gone.get(key, 0)
        block, _ = find_newest(lambda number: self._bucket.get(self._names.state_gone(key, number)), known)
        with self._lock:
            self._gone[key] = max(block, self._gone.get(key, 0))
            return self._gone[key]

    def _known_version(self, key: str) -> VersionedValue:
        """A version that there was for certain, from which newer ones are found without a gap."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = VersionedValue(1, self._initial[key]) if key in self._initial else VersionedValue()
            gone = self._gone.get(key, 0) * BLOCK
            return known if known.version >= gone else VersionedValue(gone)

    def _learn(self, key: str, found: VersionedValue) -> None:
        with self._lock:
            if found.version >= self._known.get(key, VersionedValue()).version:
                self._known[key] = found


def _block(version: int) -> int:
    """The block, from 1 on, to which *version* belongs."""
    return (max(version, 1) + BLOCK - 1) // BLOCK
