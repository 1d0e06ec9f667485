"""How long work on files takes, ours and that of peers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from millstream.bench.mill.fixture import LARGE, FileTree
from millstream.bench.processes import cpu_seconds
from millstream.bench.runner import Measurement
from millstream.core.clock import SystemClock

PARALLEL = 2
"""Readers at once, ours and those of peers."""

_clock = SystemClock()


def time_files(count: int, work: Callable[[], object]) -> Measurement:
    """How many a second, and what one takes of a processor: on a machine that others use, the better figure."""
    began, used = _clock.monotonic(), cpu_seconds()
    work()
    used = cpu_seconds() - used
    return Measurement(count / (_clock.monotonic() - began), {"CPU µs/file": used / count * 1e6})


def time_bytes(tree: FileTree, work: Callable[[], object], *, sides: int = 1) -> Measurement:
    """The megabytes a second of *work* on *tree*, which reads the files of *sides* copies."""
    sample = time_files(tree.files * sides, work)
    return Measurement(sample.value * tree.bytes / tree.files / 1e6, {"files/s": sample.value, **sample.figures})


def remove_large(folder: Path, tree: FileTree) -> None:
    """Remove large copies at once, for their bytes, and small ones after everybody's turn: ext4 makes new files slowly
    for minutes after many have been removed, and whoever came next would be measured with that."""
    if tree.space == LARGE:
        shutil.rmtree(folder)
