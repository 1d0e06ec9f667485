"""A disk that forgets, fails or is slow, for real processes: a library that is preloaded, and what it has recorded."""

from __future__ import annotations

from millstream.testing.disk.recording import Change, Recording
from millstream.testing.disk.shim import DiskFaults, build_shim

__all__ = ["Change", "DiskFaults", "Recording", "build_shim"]
