"""The machine that figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path

import msgspec
import numpy
import pyarrow


class Machine(msgspec.Struct, frozen=True):
    """What a reader needs to compare figures. ``memory_bytes`` is 0 where it is not known.

    ``load`` is how many processes wanted a core in the minute before: more than ``cores``, and others slowed the run.
    """

    system: str
    processor: str
    cores: int
    memory_bytes: int
    python: str
    libraries: str
    load: float = 0.0


def this_machine() -> Machine:
    """The machine and the versions that this process runs on."""
    libraries = f"SQLite {sqlite3.sqlite_version}, PyArrow {pyarrow.__version__}, NumPy {numpy.__version__}"
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries=libraries,
        load=round(os.getloadavg()[0], 1),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
