"""A process for small files that is killed at a step: the one that ``DIES_AT`` (a file) names, once.

A step is every call that brings something onto the disk, or is about to.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from millstream.stores.local import atomic_files
from millstream.stores.processes import child
from millstream.testing.killed_programs import stepping


def main(file: Path) -> None:
    left = itertools.count(int(file.read_text()), -1) if file.exists() else itertools.repeat(-1)

    def step() -> None:
        if next(left) == 0:
            file.unlink()  # whoever comes next lives
            os.kill(os.getpid(), signal.SIGKILL)

    os.link, group = stepping(os.link, step), atomic_files.AtomicFileGroup
    group.write_in_place = stepping(group.write_in_place, step)  # type: ignore[method-assign]
    atomic_files.sync_filesystem = stepping(atomic_files.sync_filesystem, step)  # type: ignore[assignment]
    child.main()


if __name__ == "__main__":
    main(Path(os.environ["DIES_AT"]))
