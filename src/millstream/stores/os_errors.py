"""The meaning of the operating system's errors for users of a store."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from millstream.stores.protocol import (
    AccessDeniedError,
    ContentIdTooLongError,
    ContentTooLargeError,
    StoreError,
    StoreUnavailableError,
)

_MEANINGS: dict[int, type[StoreError]] = {
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        StoreUnavailableError,
    ),
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.ENAMETOOLONG: ContentIdTooLongError,
    errno.EFBIG: ContentTooLargeError,
}

_ADVICE = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "raise the quota or free space",
    errno.EROFS: "mount the disk writable",
    errno.EACCES: "give the account that runs Millstream access to the path",
    errno.EPERM: "give the account that runs Millstream access to the path",
}


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn an ``OSError`` inside the block into a :class:`StoreError` that says what was being done."""
    try:
        yield
    except OSError as error:
        raise store_error(doing, error) from error


def store_error(doing: str, error: OSError) -> StoreError:
    """The :class:`StoreError` for *error*, which happened while *doing* something; transient or permanent as it is."""
    advice = _ADVICE.get(error.errno or 0)
    message = f"{doing} failed: {error}" + (f"; {advice}" if advice else "")
    return _MEANINGS.get(error.errno or 0, StoreError)(message)
