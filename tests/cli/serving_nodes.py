"""Nodes in folders of tests: opened here, or served by a process of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from millstream.node import Node
from millstream.node.members.members_status import Member
from millstream.settings import load_settings
from millstream.testing.waiting import Found, until
from support.forked_commands import ForkedCommand

MEMBER_SETTINGS = """
[node]
database = "{database}"
lease = "4s"
[log]
store = "{logs}"
[queue]
broker = "amqp://127.0.0.1:1"
[anchoring]
cas = "file://{shared}"
[batching]
window = "200ms"
max_delay = "1s"
"""
"""Of a node that several processes serve, with a short lease; no queue of it is used."""


def soon(condition: Callable[[], Found], what: str) -> Found:
    """:func:`until`, for what processes do that have to start first."""
    return until(condition, what, seconds=120)


def owner_of(node: Node, role: str, *, but: str = "") -> Member:
    """The member that owns *role*, once it is another one than *but*."""
    alive = node.databases.members.table.alive
    return soon(lambda: next((one for one in alive() if role in one.owns and one.id != but), None), "an owner")


def open_node(folder: Path) -> Node:
    """The node of *folder*."""
    return Node.open(load_settings({"data": str(folder)}, environment={})[0], create=True)


class Serving:
    """A node that serves, in a process of its own, its broker only if asked; ``ready`` has what listens, by name.

    *broker* may be where it listens; *arguments* are further ones of the command.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        broker: bool | str = False,
        arguments: Sequence[str] = (),
    ) -> None:
        self._lines = folder / "lines.jsonl"
        command = ["serve", "--console", "127.0.0.1:0"]
        place = broker if isinstance(broker, str) else "127.0.0.1:0"
        command += ["--broker", place, *arguments] if broker else ["--no-broker", *arguments]
        with self._lines.open("wb") as lines:
            self.process = ForkedCommand(
                *command, "--data", str(folder), errors=lines, environment={**os.environ, **(environment or {})}
            )
        self.ready: dict[str, str] = {}

    def __enter__(self) -> Serving:
        while "console" not in self.ready:
            line = self.process.stdout.readline()
            if " ready on " not in line:
                self.process.kill()
                raise AssertionError(self._lines.read_text("utf-8"))
            words = line.split()
            self.ready[words[0]] = words[3]
            if "TLS" in words:
                self.ready["broker with TLS"] = words[-1]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def ask(self, path: str) -> dict[str, Any]:
        with urlopen(f"{self.ready['console']}/api/v1/{path}") as answer:
            return dict(json.load(answer))

    @property
    def said(self) -> list[str]:
        """The messages of all whole log lines."""
        whole = self._lines.read_text("utf-8").rpartition("\n")[0]
        return [json.loads(line)["message"] for line in whole.splitlines()]

    def drain(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.said
