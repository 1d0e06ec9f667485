"""The programs in ``go/`` and ``torchwood/``, built from packages of others, and what they answer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class RefusedError(Exception):
    """The program did not accept what it was given."""


class NoToolchainError(Exception):
    """The Go that a program needs cannot be had on this machine."""


class GoProgram:
    """The program *module*, which is kept in *folder*; see its commands in ``main.go``.

    *toolchain* is the Go it needs (``go1.27.3``) where the one of the machine may be too old; the ``go`` command then
    downloads it. Raises :class:`NoToolchainError` where it cannot.
    """

    def __init__(self, module: str, folder: Path, *, toolchain: str | None = None) -> None:
        self._program = folder / module
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOFLAGS": ""}
        if toolchain:
            environment["GOTOOLCHAIN"] = toolchain
            done = subprocess.run(["go", "version"], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoToolchainError(done.stderr.strip()[-300:])
        build = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(self._program), "."]
        subprocess.run(build, cwd=Path(__file__).parent / module, check=True, env=environment)

    def __call__(self, *arguments: object) -> Any:
        """What the command *arguments* answers. Raises :class:`RefusedError`."""
        command = [str(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RefusedError(done.stderr[:500])
        return json.loads(done.stdout)
