"""Marks in a table which probe was reached while which test ran. It needs nothing but Python, and starts with it.

The table is a file that all processes of a test map into their memory. A mark costs a store to memory, and survives
when its process is killed. A process learns of the table from its environment, so that children mark too.

The file begins with two numbers of eight bytes: the row of the test that runs, and the width of a row. Row 0 is for
what runs outside tests. Then come the rows, a byte for each probe.
"""

from __future__ import annotations

import builtins
import contextlib
import mmap
import os
from pathlib import Path

ENVIRONMENT = "MILLSTREAM_HITS"
CALL = "__millstream_hit__"
ROWS = 1 << 16
_HEAD = 16

_marks: memoryview | None = None
_head: memoryview | None = None


def create(path: Path, width: int) -> None:
    """Make the table *path*, with *width* probes a row."""
    with path.open("xb") as file:
        file.write((0).to_bytes(8, "little") + width.to_bytes(8, "little"))
        file.truncate(_HEAD + ROWS * width)


def attach(path: str) -> None:
    """Mark in the table *path* from now on, in this process and in its children."""
    global _marks, _head
    with open(path, "r+b") as file:  # noqa: PTH123 - this module is imported by every process: it shall cost nothing
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    _head, _marks = memory[:_HEAD].cast("Q"), memory[_HEAD:]
    os.environ[ENVIRONMENT] = path


def enter(row: int) -> None:
    """Let the marks of all processes go to *row* from now on."""
    if not (_head and row < ROWS):
        raise RuntimeError(f"no table of hits with a row {row}")
    _head[0] = row


def hit(number: int) -> None:
    """Mark that the probe *number* was reached."""
    if _head is not None and _marks is not None:
        row, width = _head
        _marks[row * width + number] = 1


def read(path: Path, row: int) -> list[int]:
    """The probes that are marked in a row of the table *path*."""
    with path.open("rb") as file:
        file.seek(8)
        width = int.from_bytes(file.read(8), "little")
        file.seek(_HEAD + row * width)
        return [number for number, mark in enumerate(file.read(width)) if mark]


def start() -> None:
    """Give all modules the call, and attach to the table that the environment names, if it still exists."""
    setattr(builtins, CALL, hit)
    if ENVIRONMENT in os.environ:
        with contextlib.suppress(OSError):
            attach(os.environ[ENVIRONMENT])
