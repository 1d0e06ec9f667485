"""Building the library that stands between a program and its disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from millstream.testing.services import LocalServerMissingError

_SOURCE = Path(__file__).with_name("shim.c")


class DiskFaults(msgspec.Struct, frozen=True):
    """What happens to the files below ``folder``: changes are recorded in ``journal``, sync number ``fail_sync`` fails
    once, every sync takes ``slow_ms`` milliseconds longer.
    """

    folder: Path
    journal: Path | None = None
    fail_sync: int = 0
    slow_ms: int = 0

    def environment(self, library: Path) -> Mapping[str, str]:
        """The environment of a process that this happens to."""
        wanted = {
            "FOLDER": str(self.folder.resolve()),
            "JOURNAL": str(self.journal or ""),
            "FAIL_SYNC": str(self.fail_sync or ""),
            "SLOW_MS": str(self.slow_ms or ""),
        }
        found = {f"MILLSTREAM_DISK_{name}": value for name, value in wanted.items() if value}
        return {**os.environ, **found, "LD_PRELOAD": str(library)}


def build_shim(folder: Path) -> Path:
    """The library, built in *folder*. Raises :class:`LocalServerMissingError` where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise LocalServerMissingError("there is no C compiler: apt-get install gcc libc6-dev")
    library = folder / "disk_shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"], check=True
    )
    return library
