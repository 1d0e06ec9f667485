"""``millstream witness serve`` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from millstream.anchoring.transparency.signed_note import VerifierKey, parse_verifier_key


class WitnessProcess:
    """A witness whose key and state are in *folder*, for the ledgers of *logs*; it listens when the block begins."""

    def __init__(self, folder: Path, logs: Sequence[VerifierKey], *arguments: str) -> None:
        self._key_file = folder / "witness.key"
        self._errors = folder / "errors.jsonl"
        options = [option for log in logs for option in ("--log", str(log))]
        command = ["serve", "--listen", "127.0.0.1:0", "--key", str(self._key_file), *options, *arguments]
        self._command = [sys.executable, "-m", "millstream", "witness", *command, "--data", str(folder)]
        self.url = ""

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        first, second = self._process.stdout.readline(), self._process.stdout.readline()
        if not second.startswith("serving "):
            self._process.kill()
            raise AssertionError(self._errors.read_text("utf-8"))
        self.key = parse_verifier_key(first.removeprefix("witness ").strip())
        self.url = second.removeprefix("serving ").strip()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> int:
        """End it by SIGKILL, wherever it is; its exit code."""
        self._process.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()

    def stop(self) -> int:
        """End it by SIGTERM; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)
