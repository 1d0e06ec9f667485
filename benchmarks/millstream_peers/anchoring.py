"""The least that taking operations over HTTP costs, beside a registry: see :mod:`millstream_peers.registry_floor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def floor_command(database: Path) -> Sequence[str]:
    """The command of the server whose operations are in the file *database*; it prints ``serving URL``."""
    return [sys.executable, "-m", "millstream_peers.registry_floor", str(database)]


def floor_environment() -> Mapping[str, str]:
    """The environment in which :func:`floor_command` finds its modules."""
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)])}
