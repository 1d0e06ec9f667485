"""Faults of ledgers that a witness, a process of its own, cosigns, on a :class:`faulty_node.FaultyNode`."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.anchoring.transparency.signed_note import VerifierKey
from millstream.core.clock import SystemClock
from millstream.node import Node
from millstream.node.ledger_trees import LEDGERS, ledger_keys
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG, make_batch
from support.witness_process import WitnessProcess

if TYPE_CHECKING:
    from faulty_node import FaultyNode


class LocalWitness:
    """The only witness of the ledgers of the node in *data*; *folder* has its files, and the policy that names it."""

    def __init__(self, folder: Path, data: Path) -> None:
        folder.mkdir()
        settings, _ = load_settings({"data": str(data)})
        begun = [name for name in LEDGERS if (data / "keys" / f"{name}.json").exists()]
        keys = [ledger_keys(settings, name, SystemClock()).signing_until() for name in begun]
        self._folder, self._keys = folder, [key for found in keys for key, _ in found]
        self._process = self._started("127.0.0.1:0")
        self.policy = folder / "policy"
        logs = "".join(f"log {key}\n" for key in self._keys)
        self.policy.write_text(f"{logs}witness A {self._process.key} {self._process.url}\nquorum A\n", "utf-8")

    @property
    def settings(self) -> str:
        """The settings of a node that it cosigns."""
        return f'[anchoring]\nwitness_policy = "{self.policy}"\nwitness_alarm = "1s"\n'

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def start(self, *, anew: bool = False) -> None:
        """Start it again, where it was; *anew* it has forgotten what it cosigned."""
        if anew:
            (self._folder / "witness.key.db").unlink()
        self._process = self._started(self._process.url.removeprefix("http://"), *(["--new"] if anew else []))

    def _started(self, listen: str, *more: str) -> WitnessProcess:
        keys: list[VerifierKey] = self._keys
        return WitnessProcess(self._folder, keys, "--rate", "1000", "--listen", listen, *more).__enter__()


def anchor(node: Node, number: int) -> None:
    """Anchor a batch with the message *number*."""
    node.anchoring.batch_writer.add("weather", [make_batch([number])], config=CONFIG)
    node.anchoring.batch_writer.cut(force=True)


def ask_witness(node: Node) -> None:
    """Offer the newest checkpoint of each ledger, as `millstream serve` does."""
    for name in filter(node.ledgers.has, LEDGERS):
        node.ledgers.cosignatures.required_collector(name).collect()


@contextlib.contextmanager
def witnessed(desk: FaultyNode) -> Iterator[LocalWitness]:
    """A witness that has cosigned the ledgers of the node, whose settings name it."""
    witness = LocalWitness(desk.folder.parent / "witness", desk.folder)
    desk.reopen(witness.settings)
    ask_witness(desk.node)
    try:
        yield witness
    finally:
        witness.kill()


@contextlib.contextmanager
def witness_away(desk: FaultyNode) -> Iterator[None]:
    with witnessed(desk) as witness:
        witness.kill()
        anchor(desk.node, 92_000)
        ask_witness(desk.node)
        desk.clock.advance(2)
        yield
        witness.start()
        desk.clock.advance(61)
        ask_witness(desk.node)


@contextlib.contextmanager
def ledger_forked(desk: FaultyNode) -> Iterator[None]:
    with witnessed(desk) as witness:
        with another_history(desk) as other:
            ask_witness(other)
        anchor(desk.node, 94_000)
        ask_witness(desk.node)
        yield
        witness.kill()
        witness.start(anew=True)
        desk.clock.advance(61)
        ask_witness(desk.node)


@contextlib.contextmanager
def another_history(desk: FaultyNode) -> Iterator[Node]:
    """A copy of the node, with its keys, whose ledger continues with another anchor."""
    folder = desk.folder.parent / "another"
    shutil.copytree(desk.folder, folder, ignore=shutil.ignore_patterns("serving.json"))
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings, desk.clock) as node:
        anchor(node, 93_000)
        yield node
