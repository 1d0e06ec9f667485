"""The sealed objects of a log in its own bucket: a ``TierObjects`` of ``millstream.log.tiering``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from millstream.core.clock import Clock
from millstream.log.backends.objects.bucket import Bucket, list_all
from millstream.log.backends.objects.creating import create_object


class SealedSpace:
    """Objects below *root* of *bucket*. Thread-safe. An object is in memory while it is stored."""

    def __init__(self, bucket: Bucket, root: str, clock: Clock) -> None:
        self._bucket, self.root, self._clock = bucket, root, clock

    @property
    def url(self) -> str:
        return self._bucket.url

    def create(self) -> None:
        """Nothing: the bucket exists with its log."""

    def put(self, name: str, source: BinaryIO, *, sha256: str) -> None:  # noqa: ARG002 - the bucket checks bytes itself
        create_object(self._bucket, self.root + name, source.read(), self._clock)

    def read(self, name: str, start: int, length: int) -> bytes | None:
        return self._bucket.get(self.root + name, start, length)

    def size(self, name: str) -> int | None:
        return self._bucket.size(self.root + name)

    def delete(self, name: str) -> None:
        self._bucket.delete([self.root + name])

    def names(self, prefix: str) -> Iterator[str]:
        return (name[len(self.root) :] for name in list_all(self._bucket, self.root + prefix))
