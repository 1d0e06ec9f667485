"""Benchmark peers: other programs that a benchmark measures beside our own parts.

They live in the repository, in ``benchmarks/millstream_peers``, and not in the installed package. In a checkout each
benchmark finds its peers by :func:`load_peers`; elsewhere it measures our own parts alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "millstream_peers"

BENCHMARKS_WITH_PEERS = ("anchoring", "demo", "log", "messaging", "mill", "pipeline")
"""Each has a module of this name in the package of the peers."""

ABSENT = (
    "the peers of this benchmark are in the folder benchmarks/ of Millstream's repository, and this is not a checkout "
    "of it"
)


def peers_folder() -> Path | None:
    """The folder ``benchmarks`` of the checkout that this package is run from; None for an installed package."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    return folder if (folder / PACKAGE / "__init__.py").is_file() else None


def load_peers(benchmark: str) -> ModuleType | None:
    """The module with the peers of *benchmark*; None where there is no checkout."""
    folder = peers_folder()
    if folder is None:
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(f"{PACKAGE}.{benchmark}")
