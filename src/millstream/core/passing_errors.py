"""Errors that may pass without a change of settings or program, so that the same work may succeed later."""

from __future__ import annotations

import errno

from millstream.core.errors import MillstreamError
from millstream.core.sql_failures import SQL_PASSES

_OS_PASSES = frozenset(
    [
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE),  # disks that are full, failing or detached
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT),
    ]
)


def is_passing(error: Exception) -> bool:
    """Whether *error* may pass: a server that does not answer, a full disk, or a resource that others have now."""
    if isinstance(error, MillstreamError):
        return error.transient
    return isinstance(error, SQL_PASSES) or (isinstance(error, OSError) and error.errno in _OS_PASSES)
