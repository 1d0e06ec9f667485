"""Files and folders that other accounts of the machine cannot read."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import stat
from collections.abc import Collection
from pathlib import Path

_OTHERS, _GROUP_AND_OTHERS = 0o007, 0o077
_log = logging.getLogger(__name__)


def make_private_folder(path: Path) -> None:
    """Make the folder *path* for its owner alone (0700), and the folders above it; one that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Make the empty file *path* for its owner alone (0600); one that is there stays as it is.

    In a folder that a group shares (it may write there, and others may not) the group has the file too, as far as the
    mask of the process allows.
    """
    mode = path.parent.stat().st_mode
    is_shared = mode & stat.S_IWGRP and not mode & stat.S_IWOTH
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660 if is_shared else 0o600))


def restrict(folder: Path, patterns: Collection[str], *, group: bool) -> None:
    """Take *folder*, and what lies in it under names of *patterns*, from other accounts, as far as it is ours.

    With *group* the folder's group has the rights of the owner; without, only the owner has rights. What belongs to
    another account, symbolic links and folders that everybody may write (such as ``/tmp``) stay as they are. A file
    system that refuses is logged as a warning.
    """
    if folder.stat().st_mode & stat.S_IWOTH and folder.stat().st_mode & stat.S_ISVTX:
        return
    _restrict(folder, group=group)
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
                _restrict(Path(entry.path), group=group)


def _restrict(path: Path, *, group: bool) -> None:
    try:
        found = path.lstat()
        before = stat.S_IMODE(found.st_mode)
        after = (before | (before & 0o700) >> 3) & ~_OTHERS if group else before & ~_GROUP_AND_OTHERS
        if after != before and found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode):
            path.chmod(after)
    except FileNotFoundError:
        return  # a draft, or a file of SQLite that another process has just removed
    except OSError as error:
        _log.warning("other accounts may be able to read %s: %s", path, error.strerror)
