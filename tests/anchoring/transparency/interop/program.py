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
        self._folder = folder
        self._module = Path(__file__).parent / module
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOFLAGS": ""}
        if toolchain:
            environment["GOTOOLCHAIN"] = toolchain
            done = subprocess.run(["go", "version"], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoToolchainError(done.stderr.strip()[-300:])
        self._environment = environment
        self._build(self._program, ".")

    def tool(self, package: str) -> Path:
        """The program *package*, which the module requires as a tool, built."""
        target = self._folder / package.rpartition("/")[2]
        self._build(target, package)
        return target

    def _build(self, target: Path, package: str) -> None:
        build = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(target), package]
        subprocess.run(build, cwd=self._module, check=True, env=self._environment)

    def __call__(self, *arguments: object) -> Any:
        """What the command *arguments* answers. Raises :class:`RefusedError`."""
        command = [str(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RefusedError(done.stderr[:500])
        return json.loads(done.stdout)
