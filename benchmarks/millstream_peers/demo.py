"""The least that the steps of the demo cost: see :mod:`millstream_peers.demo_floor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from millstream_peers.anchoring import floor_environment

__all__ = ["floor_command", "floor_environment"]


def floor_command(folder: Path) -> Sequence[str]:
    """The command of the program that runs the steps in the new *folder*; it takes a limit as well."""
    return [sys.executable, "-m", "millstream_peers.demo_floor", str(folder)]
