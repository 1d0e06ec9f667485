"""Sidetree's reference implementation as a process that judges, writes, reads and resolves."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from millstream.core.durable import file_lock

HERE = Path(__file__).parent


class RefusedByReferenceError(Exception):
    """The reference implementation refused a whole request."""


class Files(msgspec.Struct, frozen=True):
    """A written batch: its anchor string, and the bytes of its files."""

    anchor: str
    contents: Sequence[bytes]


class ReferenceImplementation:
    """A process of ``driver.cjs``, with the packages in *folder*, which are fetched where they are absent."""

    def __init__(self, folder: Path) -> None:
        _install(folder)
        environment = {**os.environ, "NODE_PATH": str(folder / "node_modules")}
        self._process = subprocess.Popen(
            ["node", str(HERE / "driver.cjs")], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def parse(self, texts: Iterable[bytes]) -> list[str | None]:
        """What its JSON parser reads in each of *texts*, written by ``JSON.stringify``; None where it fails."""
        return [None if isinstance(found, dict) else found for found in self._ask("parse", texts=_texts(texts))]

    def judge(self, deltas: Iterable[bytes]) -> list[str]:
        """``ok`` for each of *deltas* (JSON) that it takes in a chunk file, or its error."""
        return self._ask("judge", deltas=_texts(deltas))  # type: ignore[no-any-return]

    def take(self, requests: Iterable[bytes]) -> list[str]:
        """``ok`` for each of *requests* that it takes from a client, or its error."""
        return self._ask("take", requests=_texts(requests))  # type: ignore[no-any-return]

    def write(self, requests: Iterable[bytes]) -> Files:
        """A batch of *requests*, at most one for an identifier."""
        found = self._ask("write", requests=_texts(requests))
        return Files(found["anchor"], [base64.b64decode(data) for data in found["files"]])

    def read(self, batches: Mapping[int, Files]) -> list[bool]:
        """Read *batches* by their numbers in the ledger; whether it is done with each, and need not try again."""
        sent = [
            {"number": number, "anchor": batch.anchor, "contents": _texts(batch.contents)}
            for number, batch in batches.items()
        ]
        return self._ask("read", batches=sent)  # type: ignore[no-any-return]

    def resolve(self, dids: Sequence[str], method: str = "sidetree") -> list[Any]:
        """The resolution result of each of *dids*: None where there is none, ``{"error": …}`` where it fails."""
        found = self._ask("resolve", dids=dids, method=method)
        return [json.loads(answer) if isinstance(answer, str) else answer for answer in found]

    def forget(self) -> None:
        """Forget everything that was read."""
        self._ask("forget")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _ask(self, command: str, **members: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"command": command, **members}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RefusedByReferenceError(answer["error"])
        return answer["value"]


def _texts(texts: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(text).decode("ascii") for text in texts]


def _install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock"):
        if not (folder / "node_modules" / ".package-lock.json").exists():
            shutil.copy(HERE / "package.json", folder / "package.json")
            subprocess.run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"], cwd=folder, check=True)
