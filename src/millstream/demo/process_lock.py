"""One demo at a time on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from millstream.core.errors import BusyError


class DemoBusyError(BusyError):
    """Another demo is running on this folder."""


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[Path]:
    """Have *folder*, made where it is absent, to oneself. Raises :class:`DemoBusyError` that names who has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise DemoBusyError(
                f"process {holder} is running a demo in {folder.parent}: wait until the demo ends, or stop that process"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield folder
