"""What a program does to its disk, recorded write by write."""

import subprocess
import sys
from pathlib import Path

from millstream.testing.disk import DiskFaults, Recording


def record_disk(shim: Path, folder: Path, program: Path, *arguments: object) -> tuple[Path, Recording]:
    """Run the Python *program* with a new folder in *folder* and *arguments*; that folder, and what was done to it.

    *shim* is the library that records the calls.
    """
    store, journal = folder / "store", folder / "journal"
    store.mkdir()
    environment = DiskFaults(store, journal).environment(shim)
    subprocess.run([sys.executable, str(program), str(store), *map(str, arguments)], env=environment, check=True)
    return store, Recording(journal)
