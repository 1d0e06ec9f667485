"""The package as one file, for executors that have Millstream's dependencies and not Millstream itself."""

from __future__ import annotations

import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from millstream.core.durable import replacing

_LEFT_OUT = {"__pycache__", "console"}
"""Packages that no task of Spark imports."""

_WRITTEN = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a ZIP archive: the same package gives the same bytes."""


def write_package(target: Path) -> int:
    """Write the package as the ZIP archive *target*, for ``spark-submit --py-files``; returns how many files it has.

    The bytes depend on the package alone. Raises ``OSError`` where *target* cannot be written.
    """
    count = 0
    with replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        waiting: list[tuple[str, Traversable]] = [("millstream", files("millstream"))]
        while waiting:
            name, found = waiting.pop()
            if found.is_dir():
                inside = sorted(found.iterdir(), key=lambda each: each.name, reverse=True)
                waiting += [(f"{name}/{each.name}", each) for each in inside if each.name not in _LEFT_OUT]
            elif not name.endswith(".pyc"):
                archive.writestr(zipfile.ZipInfo(name, _WRITTEN), found.read_bytes(), zipfile.ZIP_DEFLATED)
                count += 1
    return count
