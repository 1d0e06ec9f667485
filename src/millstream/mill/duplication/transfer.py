"""Copying one content item between stores so that only proven bytes arrive."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, cast

from millstream.core.errors import NotFoundError
from millstream.core.shown_commands import check_command
from millstream.mill.configured_stores import QUARANTINE, ConfiguredStores
from millstream.mill.errors import DuplicationError
from millstream.mill.item_ref import ItemRef
from millstream.stores.audit import AuditedStore
from millstream.stores.protocol import ChecksumMismatchError, ItemInfo, StoreInputError

READ_ATTEMPTS = 3
"""How often a source is read whose bytes do not match its checksum (reference mill, D15 and D16)."""

WRITE_ATTEMPTS = 4
"""How often a destination is written that confirms another checksum (reference mill, D17)."""

_CUT = 40
"""Characters of each text beside an item in quarantine that every store takes: S3 has room for 2,048 bytes."""


class HashingReader(io.RawIOBase):
    """Reads from *source* and knows the SHA-256 of what has been read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._hasher = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hasher.update(data)
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @property
    def sha256(self) -> str:
        """The SHA-256 (hex) of all bytes read so far."""
        return self._hasher.hexdigest()


def transfer(
    providers: ConfiguredStores,
    source: ItemRef,
    destination: ItemRef,
    sha256: str,
    *,
    mimetype: str,
    properties: Mapping[str, str],
    require: Callable[[], object] | None = None,
) -> ItemInfo:
    """Copy the bytes at *source* to *destination* and return what was stored, proven to hash to *sha256*.

    Bytes are hashed while they are read, and the destination is told what must arrive, so that it keeps nothing else.
    What it then confirms is compared again (read back, where it confirms nothing); a wrong object that was left all
    the same is moved to its quarantine. *require* is called before the destination is written, and raises where it must
    not be; at an audited store no other change comes in between. Raises :class:`DuplicationError` when the source was
    wrong :data:`READ_ATTEMPTS` times or the destination :data:`WRITE_ATTEMPTS` times.
    """
    reads = writes = 0
    described: dict[str, Any] = {"mimetype": mimetype, "properties": properties, "sha256": sha256}
    while reads < READ_ATTEMPTS and writes < WRITE_ATTEMPTS:
        try:
            stored, read = _copy_once(providers, source, destination, described, require)
        except OSError:
            reads += 1
            continue
        if stored is not None:
            if read == sha256 == _confirmed(providers, destination, stored):
                return stored
            set_aside(providers, destination, f"arrived wrong from store {source.store}")
            require = None  # what is there now is ours
        reads, writes = (reads + 1, writes) if read != sha256 else (reads, writes + 1)
    if reads >= READ_ATTEMPTS:
        raise DuplicationError(
            f"{source} was read {reads} times, but never matched its checksum {sha256}: the item may be corrupt; run "
            f"`{check_command(source.store, source.space)}`"
        )
    raise DuplicationError(
        f"{destination} was written {writes} times, but never had the checksum {sha256} afterwards: check the disk or "
        f"server of store {destination.store!r}"
    )


def set_aside(providers: ConfiguredStores, place: ItemRef, reason: str) -> ItemRef | None:
    """Move what lies at *place* into the quarantine of its store; where it went, or None where nothing was there."""
    kept = quarantine(providers, place, reason)
    if kept is not None:
        providers.call(lambda: providers[place.store].delete(place.space, place.content_id))
    return kept


def quarantine(providers: ConfiguredStores, place: ItemRef, reason: str) -> ItemRef | None:
    """Copy what lies at *place* into the quarantine of its store, whatever its bytes are; None where nothing is there.

    Its name is ``<space>/<content id>/<microseconds>``; its properties say where it came from and why. Where the store
    refuses these as too long, the name has the id's SHA-256, and the properties have the beginnings of the texts.
    """
    store = providers[place.store]
    now = providers.clock.now()

    def keep(content_id: str, note: Mapping[str, str]) -> ItemRef:
        with store.open(place.space, place.content_id) as file:
            store.put(QUARANTINE, content_id, file, properties=note)
        return ItemRef(place.store, QUARANTINE, content_id)

    note = {"from-space": place.space, "from-content-id": place.content_id, "reason": reason}
    digest = hashlib.sha256(place.content_id.encode()).hexdigest()
    cut = {name: value[:_CUT] for name, value in note.items()} | {"from-content-id-sha256": digest}
    try:
        providers.make_space(place.store, QUARANTINE)
        for name, properties in ((place.content_id, note), (digest, note)):
            with contextlib.suppress(StoreInputError):
                return providers.call(partial(keep, f"{place.space}/{name}/{now}", properties))
        return providers.call(partial(keep, f"{place.space}/{digest}/{now}", cut))
    except NotFoundError:
        return None


def _copy_once(
    providers: ConfiguredStores,
    source: ItemRef,
    destination: ItemRef,
    described: Mapping[str, Any],
    require: Callable[[], object] | None,
) -> tuple[ItemInfo | None, str]:
    """The item that the destination stored (None if it refused the bytes), and the checksum of the bytes that were
    read."""

    def copy() -> tuple[ItemInfo | None, str]:
        with providers[source.store].open(source.space, source.content_id) as file:
            reader, store = HashingReader(file), providers[destination.store]
            put = partial(store.put, destination.space, destination.content_id, cast(BinaryIO, reader))
            if require is not None and isinstance(store, AuditedStore):
                put = partial(put, require=require)
            elif require is not None:
                require()
            try:
                stored = put(**described)
            except ChecksumMismatchError:
                return None, reader.sha256
            return stored, reader.sha256

    return providers.call(copy)


def _confirmed(providers: ConfiguredStores, place: ItemRef, stored: ItemInfo) -> str | None:
    confirmed = stored.checksum()
    if confirmed is not None:
        return confirmed
    try:
        return providers.hash(place).sha256
    except NotFoundError:
        return None
