"""A writer and three witnesses that are killed over and over: run as a program.

``python witness_kill_loop.py FOLDER SEED KILLS`` lets a node anchor one message after the other while its collector
asks three ``millstream witness serve``, two of which are the quorum. KILLS times, the writer (a forked child) or a
witness is killed by SIGKILL while the writer is at work; the writer begins anew at once, a witness may stay away for
some rounds, also with both others. In the end one witness stays away, and the writer anchors and collects until nothing
is missing. A line of JSON for each kill, and one in the end, say what came of it.

Everything that may ever have been signed is written down before: by the ledger (each head, in ``signed.jsonl``), by the
witnesses (each head that their state ever had, by a trigger of their databases), and what the node got as cosigned.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from millstream.anchoring.errors import AnchoringError
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.anchoring.proof import Trust, verify_proof
from millstream.anchoring.transparency.checkpoint import parse_checkpoint
from millstream.anchoring.transparency.keys import LedgerSigner
from millstream.anchoring.transparency.policy import parse_policy
from millstream.anchoring.transparency.signed_note import parse_note
from millstream.anchoring.witness import WitnessClient
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG, make_batch
from support.cosigned_node import CosignedNode

NAMES = "ABC"
HISTORY = """
CREATE TABLE IF NOT EXISTS kept (size INTEGER, root BLOB);
CREATE TRIGGER IF NOT EXISTS keep_new AFTER INSERT ON witness_heads BEGIN
  INSERT INTO kept VALUES (NEW.size, NEW.root); END;
CREATE TRIGGER IF NOT EXISTS keep_next AFTER UPDATE ON witness_heads BEGIN
  INSERT INTO kept VALUES (NEW.size, NEW.root); END;
"""


class Records:
    """Heads in a file of lines, which a process that dies has written before it does anything with them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, checkpoint: bytes) -> None:
        head = parse_checkpoint(parse_note(checkpoint))
        with self._path.open("ab", buffering=0) as lines:
            lines.write(f"{json.dumps([head.size, head.root.hex()])}\n".encode())

    def read(self) -> list[tuple[int, bytes]]:
        lines = map(json.loads, self._path.read_text("utf-8").splitlines())
        return [(size, bytes.fromhex(root)) for size, root in lines]


def record_all(signed: Records, cosigned: Records) -> None:
    """Let every signature of the ledger, and every cosignature that arrives, be written down."""
    sign, cosign = LedgerSigner.sign, WitnessClient.cosign

    @wraps(sign)
    def recorded_sign(self: LedgerSigner, size: int, root: bytes) -> bytes:
        data = sign(self, size, root)
        signed.add(data)
        return data

    @wraps(cosign)
    def recorded_cosign(self: WitnessClient, checkpoint: bytes, path: Any) -> Any:
        answer = cosign(self, checkpoint, path)
        cosigned.add(checkpoint)
        return answer

    LedgerSigner.sign, WitnessClient.cosign = recorded_sign, recorded_cosign  # type: ignore[method-assign]


def write(data: Path, progress: Callable[[], None], is_last: Callable[[], bool]) -> None:
    """Anchor a message at a time from the first that is not anchored, and collect cosignatures, until *is_last*."""
    with Node.open(load_settings({"data": str(data)}, environment={})[0]) as node:
        writer, collector = node.anchoring.batch_writer, node.ledgers.cosignatures.required_collector("anchors")
        ended = threading.Event()

        def collect() -> None:
            is_over = False
            while not is_over:
                was_ended = ended.is_set()  # looked at first: what was anchored before has to be complete
                is_over = collector.collect() and was_ended
                progress()
                ended.wait(0.01)

        collecting = threading.Thread(target=collect)
        collecting.start()
        for number in count(first_missing(node)):
            writer.add("weather", [make_batch([number])], config=CONFIG)
            writer.cut(force=True)
            progress()
            if is_last():
                break
        ended.set()
        collecting.join()


def first_missing(node: Node) -> int:
    """The first message that is in no anchor."""
    index = node.anchoring.observer.index
    return next(number for number in count(node.anchoring.ledger.last_number) if not located(index, number))


def located(index: Any, number: int) -> bool:
    return number > 0 and index.locate("weather", number) is not None


class WriterProcess:
    """A forked writer, which tells its progress byte by byte."""

    def __init__(self, data: Path) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(reading)
                write(data, lambda: os.write(writing, b".") and None, lambda: False)
            except BaseException as error:
                sys.stderr.write(f"the writer failed: {error!r}\n")
            finally:
                os._exit(status)
        os.close(writing)
        self._progress = reading

    def work(self, steps: int) -> None:
        """Return once *steps* more steps were done. Raises where the writer ended by itself."""
        for _ in range(steps):
            if not os.read(self._progress, 1):
                raise RuntimeError("the writer has ended by itself")

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self._progress)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def rounds(node: CosignedNode, draw: random.Random, kills: int) -> set[str]:
    """Kill *kills* processes; the witnesses that are away in the end."""
    away: set[str] = set()
    writer = WriterProcess(node.data)
    for _ in range(kills):
        writer.work(draw.randrange(1, 30))
        for name in sorted(away):
            if draw.random() < 0.5:
                node.start(name)
                away.remove(name)
        victim = draw.choice(["writer", *sorted(set(NAMES) - away)])
        writer.work(draw.randrange(1, 12))
        if victim == "writer":
            status = writer.kill()
            writer = WriterProcess(node.data)
        else:
            status = node.witnesses[victim].kill()
            away.add(victim)
        print(json.dumps({"victim": victim, "status": status, "away": sorted(away)}), flush=True)
    writer.work(1)
    writer.kill()
    return away


def outcome(node: CosignedNode, signed: Records, cosigned: Records) -> dict[str, Any]:
    """What the ledger, its proofs and the witnesses say in the end."""
    policy = parse_policy(node.policy.read_bytes())
    with Node.open(load_settings({"data": str(node.data)}, environment={})[0]) as opened:
        entries = list(opened.anchoring.ledger.entries())
        leaves = [leaf_hash(encode_entry(entry)) for entry in entries]
        index, unproven = opened.anchoring.observer.index, list[int]()
        for number in range(1, len(leaves) + 1):
            try:
                proof = opened.proofs.prove("weather", number)
                found = verify_proof(proof, opened.anchoring.cas, Trust(policy=policy))
                assert found.checkpoint is not None
                assert len(found.checkpoint.witnesses) >= 2
            except AnchoringError:
                unproven.append(number)
        more = located(index, len(leaves) + 1)
    kept = {name: history(node.folder / name / "witness.key.db") for name in NAMES}
    heads = {"ledger": signed.read(), "received": cosigned.read(), **kept}
    roots = {size: merkle_root(leaves[:size]) for size in {size for all_of in heads.values() for size, _ in all_of}}
    return {
        "entries": len(leaves),
        "twice": more,
        "unproven": unproven,
        "heads": {name: len(all_of) for name, all_of in heads.items()},
        "inconsistent": [
            [name, size] for name, all_of in heads.items() for size, root in all_of if roots[size] != root
        ],
        "shrunk": [name for name, all_of in kept.items() if any(new[0] < old[0] for old, new in pairwise(all_of))],
        "newest": {name: all_of[-1][0] for name, all_of in kept.items()},
    }


def history(database: Path) -> list[tuple[int, bytes]]:
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.execute("SELECT size, root FROM kept ORDER BY rowid"))


def main() -> None:
    folder, draw, kills = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3])
    signed, cosigned = Records(folder / "signed.jsonl"), Records(folder / "cosigned.jsonl")
    record_all(signed, cosigned)
    node = CosignedNode(folder)
    try:
        for name in NAMES:
            with closing(sqlite3.connect(folder / name / "witness.key.db", timeout=30)) as connection:
                connection.executescript(HISTORY)
        with Node.open(load_settings({"data": str(node.data)}, environment={})[0], create=True) as opened:
            opened.anchoring.batch_writer.add("weather", [make_batch([1])], config=CONFIG)
            opened.anchoring.batch_writer.cut(force=True)
        away = rounds(node, draw, kills)
        last = draw.choice(NAMES)
        for name in sorted(away - {last}):
            node.start(name)
        node.stop(*({last} - away))
        write(node.data, lambda: None, lambda: True)
        print(json.dumps({**outcome(node, signed, cosigned), "stayed_away": last}), flush=True)
    finally:
        node.stop(*NAMES)


if __name__ == "__main__":
    main()
