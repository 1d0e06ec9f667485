"""The seam below a log on object storage: a bucket, with the few requests that the log makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from millstream.log.errors import StorageUnavailableError


class UnknownOutcomeError(StorageUnavailableError):
    """The server gave no answer: the object may have been created, or may still be."""


class Bucket(Protocol):
    """Objects by name. Synchronous and thread-safe; names are relative to the place that the bucket was opened for.

    What the log relies on: of all who create a name, one alone is told True, and what a request has made is seen by
    every :meth:`get` that begins after it. A listing may be behind. Each request is bounded in time. Where the server
    does not answer, calls raise :class:`~millstream.log.errors.StorageUnavailableError` after a few attempts, and where
    it refuses :class:`~millstream.log.errors.StorageError`; no message contains a secret.
    """

    @property
    def url(self) -> str:
        """The URL of the bucket, from which it can be opened again."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create the object *name*; False where there is one. One request, which is never repeated here.

        Raises :class:`UnknownOutcomeError` where the object may have been created, or may still be.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Create the object *name*, or replace it. An earlier request that was late may still replace it."""
        ...

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """The bytes of the object *name* from *start* on, *length* at most; None where there is no such object.

        Fewer where the object ends before that.
        """
        ...

    def size(self, name: str) -> int | None:
        """How many bytes the object *name* has; None where there is no such object."""
        ...

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        """The first *limit* names that begin with *prefix* and come after *after*, in the order of their bytes.

        It may be stale: names may be missing, or be of objects that were deleted.
        """
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects *names*; one that is not there is no error."""
        ...

    def server_time(self) -> int:
        """The server's clock, in microseconds since the epoch. Never goes back while the bucket is open."""
        ...

    def close(self) -> None:
        """Release the connections."""
        ...


_PAGE = 1000


def list_all(bucket: Bucket, prefix: str) -> Iterator[str]:
    """All names of *bucket* that begin with *prefix*, by as many listings as there are pages."""
    after = ""
    while True:
        page = bucket.list(prefix, after, _PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1]


def is_bucket_url(url: str) -> bool:
    """Whether the log store at *url* is in a bucket."""
    return url.startswith("s3:")


OpenBucket = Callable[[str], Bucket]
"""Opens the bucket at a URL. With that, a process that opens a log store says how buckets are reached."""
