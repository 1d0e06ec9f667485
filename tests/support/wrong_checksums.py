"""A store with a wrong checksum beside each object that was there before."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.stores import Checksum, ChecksumOrigin, ItemInfo, Store
from millstream.testing.faulty_store import FaultyStore

WRONG = "f" * 64


class WrongChecksums(FaultyStore):
    """The objects of *store*, whose checksums come from *origin*, and are wrong for those not put since."""

    def __init__(self, store: Store, origin: ChecksumOrigin) -> None:
        super().__init__(store)
        self._origin = origin
        self._right: set[tuple[str, str]] = set()

    def info(self, space: str, content_id: str) -> ItemInfo:
        info = super().info(space, content_id)
        sha256 = (info.checksum() or "") if (space, content_id) in self._right else WRONG
        return msgspec.structs.replace(info, checksums=(Checksum("sha256", sha256, self._origin),))

    def put(self, space: str, content_id: str, source: Any, **more: Any) -> ItemInfo:
        super().put(space, content_id, source, **more)
        self._right.add((space, content_id))
        return self.info(space, content_id)
