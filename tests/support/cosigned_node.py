"""A node whose ledger is cosigned by three real witnesses, for tests."""

from __future__ import annotations

import json
from pathlib import Path

from millstream.anchoring.transparency.signed_note import parse_ledger_key
from millstream.batching.ticks import idle_log_ticker
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import load_settings
from support.commands import CommandResult, run_command
from support.witness_process import WitnessProcess

SETTINGS = """
[batching]
window = "1s"
max_delay = "500ms"
[anchoring]
witness_policy = "{policy}"
witness_alarm = "0s"
"""


class CosignedNode:
    """A node with one log, whose ledger three witnesses cosign; two of them are the quorum."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.policy = folder, folder / "node", folder / "policy"
        self.data.mkdir()
        (self.data / "millstream.toml").write_text(SETTINGS.format(policy=self.policy), "utf-8")
        self.ledger_key = self.command("anchor", "key", "create", "--origin", "example.org/anchors").out.strip()
        self.witnesses: dict[str, WitnessProcess] = {}
        self._ports: dict[str, str] = {}
        for name in "ABC":
            (folder / name).mkdir()
            self.start(name)
        lines = [f"log {self.ledger_key}"]
        lines += [f"witness {name} {running.key} {running.url}" for name, running in self.witnesses.items()]
        self.policy.write_text("\n".join([*lines, "group two 2 A B C", "quorum two", ""]), "utf-8")

    @property
    def ledger_only_policy(self) -> bytes:
        """A policy that asks for no witnesses."""
        return f"log {self.ledger_key}\nquorum none\n".encode()

    def start(self, name: str) -> None:
        """Start the witness *name*, at the address that it had before."""
        listen = ["--listen", self._ports[name]] if name in self._ports else []
        witness = WitnessProcess(self.folder / name, [parse_ledger_key(self.ledger_key)], "--rate", "1000", *listen)
        self.witnesses[name] = witness.__enter__()
        self._ports[name] = witness.url.removeprefix("http://")

    def stop(self, *names: str) -> None:
        for name in names:
            self.witnesses[name].kill()

    def anchor(self, count: int = 1) -> str:
        """Append *count* messages and anchor them; the id of the last one."""
        with Node.open(load_settings({"data": str(self.data)}, environment={})[0], create=True) as node:
            log = node.logs.store.log(LogSpec("readings"))
            with log.writer() as writer:
                writer.append([Message(b"x", "flow", f"pump-{number}") for number in range(count)])
            feed, wanted = node.anchoring.feed("readings", "readings.batches"), log.last_id
            service = node.batching.service("readings", "readings.batches", ticks=idle_log_ticker(log, node.clock))

            def all_anchored() -> bool:
                feed.step(force=True)
                return node.anchoring.observer.index.locate("readings", wanted) is not None

            service.run(all_anchored)
        return str(wanted)

    def command(self, *words: str) -> CommandResult:
        return run_command(*words, "--data", str(self.data))

    def issue(self, kind: str) -> str:
        """The text of the issue *kind* of `millstream status`, empty where there is none."""
        issues = json.loads(self.command("status", "--json").out)["issues"]
        return next((str(issue["what"]) for issue in issues if issue["kind"] == kind), "")

    def cosign(self, *words: str) -> tuple[int, dict[str, object]]:
        answer = self.command("anchor", "cosign", "--json", *words)
        return answer.code, json.loads(answer.out)
