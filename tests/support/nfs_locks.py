"""Locks as NFS gives them: exclusive ones only for files that are open for writing."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import Any

import pytest


def lock_as_nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``flock`` refuse what it refuses on NFS (flock(2), "NFS details")."""
    flock = fcntl.flock

    def strict(file: Any, operation: int) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        is_file = stat.S_ISREG(os.fstat(handle).st_mode)
        reads_only = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if is_file and reads_only and operation & fcntl.LOCK_EX:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", strict)
