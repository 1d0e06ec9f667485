"""A node whose ledger of anchors is time-stamped by authorities that a test runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.batching.ticks import idle_log_ticker
from millstream.core.clock import Clock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.ledgers import some_anchor
from support.commands import CommandResult, run_command
from support.timestamp_authority import TimestampAuthority


class StampedNode:
    """A node in *folder*, with *authorities* and further lines of its section ``anchoring``."""

    def __init__(self, folder: Path, authorities: Sequence[TimestampAuthority], *settings: str) -> None:
        self.data = folder
        folder.mkdir(parents=True, exist_ok=True)
        urls = json.dumps([each.url for each in authorities])
        lines = [
            "[batching]",
            "window = '1s'",
            "max_delay = '500ms'",
            "[anchoring]",
            f"timestamp_authorities = {urls}",
            *settings,
        ]
        (folder / "millstream.toml").write_text("\n".join(lines), "utf-8")

    def open(self, clock: Clock | None = None) -> Node:
        """The node, opened by *clock*."""
        return Node.open(load_settings({"data": str(self.data)}, environment={})[0], clock, create=True)

    def append(self, *numbers: int) -> None:
        """Append an entry for each of *numbers* to the ledger of anchors."""
        with self.open() as node:
            for number in numbers:
                node.anchoring.ledger.append(some_anchor(number))

    def anchor(self, count: int = 1) -> int:
        """Append *count* messages to the log ``readings`` and anchor them; the id of the last one."""
        with self.open() as node:
            log = node.logs.store.log(LogSpec("readings"))
            with log.writer() as writer:
                ids = writer.append([Message(b"x", "flow", f"pump-{number}") for number in range(count)])
            assert ids is not None
            wanted = ids.last
            feed = node.anchoring.feed("readings", "readings.batches")
            service = node.batching.service("readings", "readings.batches", ticks=idle_log_ticker(log, node.clock))

            def all_anchored() -> bool:
                feed.step(force=True)
                return node.anchoring.observer.index.locate("readings", wanted) is not None

            service.run(all_anchored)
        return wanted

    def prove(self, message_id: int, *words: str) -> bytes:
        """`millstream prove` of a message of ``readings``."""
        answer = self.command("prove", "readings", str(message_id), *words)
        assert answer.code == 0, answer.err
        return answer.out_bytes

    def verify(self, proof: bytes, *certificates: Path, words: Sequence[str] = ()) -> CommandResult:
        """`millstream verify` of *proof*, where the authorities of *certificates* are trusted."""
        (self.data / "proof.json").write_bytes(proof)
        trusted = [word for path in certificates for word in ("--timestamps", str(path))]
        return self.command("verify", str(self.data / "proof.json"), *trusted, *words)

    def command(self, *words: str) -> CommandResult:
        """A command of the node."""
        return run_command(*words, "--data", str(self.data))

    def stamp(self, *words: str) -> tuple[int, dict[str, Any]]:
        """`millstream anchor timestamp`: its exit code and what it printed."""
        answer = self.command("anchor", "timestamp", "--json", *words)
        assert answer.out, answer.err
        return answer.code, json.loads(answer.out)

    def timestamps(self) -> dict[str, Any]:
        """`millstream anchor timestamps`."""
        found: dict[str, Any] = json.loads(self.command("anchor", "timestamps", "--json").out)
        return found
