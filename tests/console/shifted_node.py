"""A command of Millstream on a clock that a test moves: ``python shifted_node.py CLOCK ARGUMENTS``."""

from __future__ import annotations

import os
import struct
import sys
import threading
from pathlib import Path

from millstream.cli.main import run
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.node import composition

_FORMAT = struct.Struct("<dd")


class ShiftedClock:
    """The machine's clock, moved by what the file *path* says, in every process that has it."""

    def __init__(self, path: Path) -> None:
        self._true = SystemClock()
        if not path.exists():
            path.write_bytes(_FORMAT.pack(0, 0))
        self._file = os.open(path, os.O_RDWR)

    def now(self) -> int:
        return self._true.now() + round(sum(self._shifts()) * MICROSECONDS)

    def monotonic(self) -> float:
        return self._true.monotonic() + self._shifts()[1]

    def sleep(self, seconds: float) -> None:
        self._true.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float | None) -> bool:
        return self._true.wait(condition, seconds)

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass for good: also the clock that only counts moves."""
        jumped, passed = self._shifts()
        os.pwrite(self._file, _FORMAT.pack(jumped, passed + seconds), 0)

    def jump(self, seconds: float) -> None:
        """Set the wall clock *seconds* forward or back."""
        jumped, passed = self._shifts()
        os.pwrite(self._file, _FORMAT.pack(jumped + seconds, passed), 0)

    def close(self) -> None:
        """Do not use it any more."""
        os.close(self._file)

    def _shifts(self) -> tuple[float, float]:
        jumped, passed = _FORMAT.unpack(os.pread(self._file, _FORMAT.size, 0))
        return jumped, passed


if __name__ == "__main__":
    clock = ShiftedClock(Path(sys.argv[1]))
    composition.SystemClock = lambda: clock  # type: ignore[assignment,misc]
    sys.exit(run(sys.argv[2:]))
