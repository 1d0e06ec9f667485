"""A small disk that only one process sees: for tests of full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from millstream.testing.services import LocalServerMissingError


def on_a_small_disk(place: Path, options: str) -> list[str]:
    """The beginning of a command that runs Python with a disk of its own at *place*.

    *options* are those of a tmpfs: ``size=10m``, ``size=100m,nr_inodes=40``. Raises :class:`LocalServerMissingError` if
    this machine gives nobody one.
    """
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        raise LocalServerMissingError(
            f"this machine does not allow a private file system ({' '.join(unshare)} failed): run as root, in a "
            "container with CAP_SYS_ADMIN"
        )
    return [*unshare, "sh", "-c", f'mount -t tmpfs -o {options} disk "$0" && exec "$@"', str(place), sys.executable]
