"""The program in ``go/``, built from packages of others, and what it answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class RefusedError(Exception):
    """The program did not accept what it was given."""


class GoVerifiers:
    """The program, which is kept in *folder*; see the commands in ``go/main.go``."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "transparency"
        folder.mkdir(parents=True, exist_ok=True)
        build = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(self._program), "."]
        subprocess.run(build, cwd=Path(__file__).parent / "go", check=True, env={**os.environ, "GOFLAGS": ""})

    def __call__(self, *arguments: object) -> Any:
        """What the command *arguments* answers. Raises :class:`RefusedError`."""
        command = [str(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RefusedError(done.stderr[:500])
        return json.loads(done.stdout)
