"""The seam to object storage: whole objects under names, read by ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, runtime_checkable


class TierObjects(Protocol):
    """The storage of sealed objects. Thread-safe. A write is complete and durable, or has not happened. A store that
    does not answer raises
    :class:`~millstream.log.errors.StorageUnavailableError`, everything else is a
    :class:`~millstream.log.errors.StorageError`.
    """

    @property
    def url(self) -> str:
        """Where it is, without a secret: the process that opens it gets the same objects, in any process."""
        ...

    def create(self) -> None:
        """Make the place of the objects where it is missing. No other method does: a disk may not be mounted."""
        ...

    def put(self, name: str, source: BinaryIO, *, sha256: str) -> None:
        """Store the bytes of *source*, whose SHA-256 is *sha256* (hex); nothing happens where *name* exists."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes | None:
        """At most *length* bytes from *start* on; fewer only at the end. None where there is no such object."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes an object has; None where there is none."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """The names that begin with *prefix*, in order; a listing may be behind."""
        ...


class OwnObjects(TierObjects, Protocol):
    """Objects in the bucket of a log itself."""

    @property
    def root(self) -> str:
        """The prefix of the name of an object in that bucket."""
        ...


@runtime_checkable
class KeepsObjects(Protocol):
    """A backend that can keep sealed objects of a log itself, beside its commits."""

    def own_objects(self, log: str) -> OwnObjects:
        """The location of the sealed objects of *log* that were not moved elsewhere."""
        ...

    def commits(self, log: str) -> int:
        """How many commits *log* has that are not freed, as far as is known: a cold open reads them all."""
        ...


OpenObjects = Callable[[str], TierObjects]
"""Opens the objects at a URL."""
