"""The programs of servers: where they are, and running one to its end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from millstream.core.errors import MillstreamError, NotFoundError


class LocalServerError(MillstreamError):
    """The server did not start; its log is in the message."""


class LocalServerMissingError(LocalServerError, NotFoundError):
    """The server's programs are not installed on this machine."""


def find_program(name: str, package: str, *, folders: Sequence[str] = ()) -> str:
    """The path of the program *name*, also from *folders*. Raises :class:`LocalServerMissingError`."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *folders]
    path = shutil.which(name, path=os.pathsep.join(places))
    if path is None:
        raise LocalServerMissingError(f"{name} is not installed: apt-get install {package}")
    return path


def run_program(command: Sequence[str]) -> str:
    """Run *command* to its end, and return what it printed. Raises :class:`LocalServerError`, with what it said."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode:
        raise LocalServerError(f"{command[0]} failed:\n{(result.stdout + result.stderr)[-2000:]}")
    return result.stdout
