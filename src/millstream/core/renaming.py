"""A rename that never replaces what has the new name already."""

from __future__ import annotations

import ctypes
import errno
import os

_NO_REPLACE = 1  # RENAME_NOREPLACE of renameat2(2)
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def rename_new(old: str, new: str, folder: int) -> None:
    """Rename *old* to *new*, both in the open *folder*; raises ``FileExistsError`` where *new* exists.

    Where the kernel or the filesystem (such as NFS) cannot refuse by itself, *new* is looked for first: what another
    program makes between the two steps is then replaced if it is a file, or an empty folder in the place of a folder.
    """
    if _renameat2 is not None:
        if not _renameat2(folder, os.fsencode(old), folder, os.fsencode(new), _NO_REPLACE):
            return
        number = ctypes.get_errno()
        if number not in _UNSUPPORTED:
            raise OSError(number, os.strerror(number), new)
    if _exists(new, folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
