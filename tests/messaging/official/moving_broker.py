"""A broker that moves between processes, of which one is always on standby: clients are given that one's address."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import msgspec

from millstream.core.address import Address, parse_address
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.testing.waiting import until

CHILD = Path(__file__).parent.parent / "children" / "shared_broker.py"


class MovingBroker:
    """Processes that share the topics in the store *url*; *folder* is for what they tell each other."""

    def __init__(self, url: str, limits: Limits, folder: Path, stack: contextlib.ExitStack) -> None:
        self.url = url
        self._limits = msgspec.json.encode(limits).decode()
        self._owner_file = folder / "owner"
        self._owner_file.write_text("", "utf-8")
        self._stack = stack
        self._owner: subprocess.Popen[str] | None = None
        self.standby = Address("127.0.0.1", self._start()[1])

    @property
    def place(self) -> Address:
        """Where the topics are."""
        return parse_address(self._owner_file.read_text("utf-8"))

    def create_topic(self, name: str, kind: str) -> None:
        """Make the topic *name* of one queue."""
        call_broker(self.place, CREATE_TOPIC, TopicSpec(name, kind, 1))

    def move(self, *, kill: bool) -> None:
        """Let a new process have the topics, after the present one gave them up or was killed."""
        if self._owner is not None and kill:
            self._owner.kill()
            self._owner.wait()
        elif self._owner is not None:
            assert _tell(self._owner, "end") == "done"
        successor, _ = self._start()
        until(lambda: _tell(successor, "begin") == "done", "the next broker", seconds=60)
        self._owner = successor

    def end(self) -> None:
        """End the process that has the topics."""
        assert self._owner is not None
        assert _tell(self._owner, "end") == "done"

    def _start(self) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, str(CHILD), self.url, "0", self._limits, str(self._owner_file)]
        process = self._stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        self._stack.callback(process.kill)
        assert process.stdout is not None
        return process, int(process.stdout.readline())


def _tell(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()
