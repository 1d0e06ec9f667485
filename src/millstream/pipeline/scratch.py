"""A session's scratch folder, and those that dead sessions left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "spark-"


@contextlib.contextmanager
def scratch_folder(work: Path) -> Iterator[Path]:
    """A new folder in *work*, gone when the block is left; those of processes that are no more are removed too."""
    work.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(work)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=work))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_abandoned(work: Path) -> None:
    for folder in work.glob(f"{_PREFIX}[0-9]*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)
