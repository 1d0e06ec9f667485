"""An anchor that dies between two steps of append, tree, signature, copy and tiles: run as a program, for many deaths.

``python tree_crash_loop.py FOLDER SEED COUNT`` appends anchors to a ledger of 254 entries whose tree is signed, copied
and published, so that the first tile becomes full on the way. It first runs undisturbed and prints its steps; then it
runs on a fresh folder for each death, in a forked child that is killed by SIGKILL at one step. With COUNT 0 each step
is fatal once; else COUNT times one or two steps are drawn. The same job is then run again, undisturbed, and a line of
JSON says what came of it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from millstream.anchoring import LogLedger
from millstream.anchoring.errors import AnchoringError
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import leaf_hash, merkle_root, verify_consistency, verify_inclusion
from millstream.anchoring.transparency import FolderFiles, GrowingTree, LedgerTree, TreePlaces
from millstream.core.clock import SystemClock
from millstream.log import open_store
from millstream.log.writing.writer import Writer
from millstream.testing.killed_programs import stepping
from millstream.testing.ledgers import some_anchor
from support.ledger_signer import ChecksumSigner
from support.published_tiles import check_tiles

BEFORE, NEW = 254, 3
"""Entries of the ledger before, and those that the job appends."""

SIGNED = "signed.jsonl"
"""Every checkpoint that was ever signed, also by a process that died with it."""


class Steps:
    """Counts the steps of a job by name, and kills the process at one of them."""

    def __init__(self, folder: Path, fatal: int | None) -> None:
        self._fatal = fatal
        self._last = folder / "last-step"
        self.taken: list[str] = []

    def take(self, name: str) -> None:
        self.taken.append(name)
        if len(self.taken) == self._fatal:
            self._last.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, thing: Any, name: str, what: str) -> None:
        number = iter(range(10**6))
        setattr(thing, name, stepping(getattr(thing, name), lambda: self.take(f"{what} {next(number) % 2}")))


class RecordingSigner(ChecksumSigner):
    """Writes down what it signs, so that it is known whatever becomes of the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._record = os.open(folder / SIGNED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def sign(self, size: int, root: bytes) -> bytes:
        os.write(self._record, f"{json.dumps([size, root.hex()])}\n".encode())
        return super().sign(size, root)


def job(folder: Path, fatal: int | None, *, first: int = BEFORE, last: int = BEFORE + NEW) -> None:
    """Append the anchors from *first* to before *last*, as a batch writer does that knows nothing of an earlier run."""
    steps = Steps(folder, fatal)
    engine = sa.create_engine(f"sqlite:///{folder / 'node.db'}")
    places = TreePlaces(
        copy=FolderFiles(folder / "outside", "anchors", create=True),
        tiles=FolderFiles(folder / "tiles", "anchors", create=True),
    )
    with open_store(f"sqlite:///{folder / 'log.db'}") as store:
        ledger, signer = LogLedger(store, SystemClock()), RecordingSigner(folder)
        tree = LedgerTree(ledger, lambda: engine, "anchors", signer=lambda: signer, places=lambda: places)
        for number in range(first, min(last, BEFORE - 1)):
            ledger.append(some_anchor(number), after=number)
        tree.follow()
        if first:
            sys.addaudithook(lambda event, _: steps.take("rename") if event == "os.rename" else None)
            steps.around(Writer, "append", "append")
            steps.around(GrowingTree, "extend", "tree")
            steps.around(signer, "sign", "sign")
            steps.around(places.copy, "put", "copy")
            steps.around(places.tiles, "put", "tile")
            steps.around(places.tiles, "delete_below", "drop partial tiles")
            sa.event.listen(engine, "commit", lambda _: steps.take("commit"))
        for number in range(max(first, BEFORE - 1), last):
            ledger.append(some_anchor(number), after=number)
            status = tree.status()
            assert (status.problem, status.signed) == (None, status.entries), status
        outcome(folder, ledger, tree, places, steps.taken)
    engine.dispose()


def outcome(folder: Path, ledger: LogLedger, tree: LedgerTree, places: TreePlaces, taken: list[str]) -> None:
    """Check the ledger, its tree and everything that was ever signed, and write down what is wrong."""
    ledger.verify()
    lines = [encode_entry(entry) for entry in ledger.entries()]
    leaves, newest = [leaf_hash(line) for line in lines], tree.newest()
    signed = [tuple(json.loads(line)) for line in (folder / SIGNED).read_text().splitlines()]
    roots = {size: merkle_root(leaves[:size]) for size in {size for size, _ in signed}}
    result: dict[str, Any] = {"steps": taken, "anchors": [entry.anchor_string for entry in ledger.entries()]}
    result["inconsistent"] = sorted({size for size, root in signed if roots[size].hex() != root})
    assert newest is not None
    result["newest"], result["leaves"] = newest.size, tree.size
    result["copied"] = places.copy is not None and places.copy.read("checkpoint") == newest.data
    result["published"] = places.tiles is not None and places.tiles.read("checkpoint") == newest.data
    result["unproven"] = []
    for index in [*range(0, BEFORE, 16), *range(BEFORE, len(leaves))]:
        try:
            verify_inclusion(leaves[index], index, newest.size, tree.inclusion_path(index, newest.size), newest.root)
        except AnchoringError:
            result["unproven"].append(index)
    for (old, old_root), (size, root) in pairwise(sorted(roots.items())):
        verify_consistency(old, old_root, size, root, tree.consistency_path(old, size))
    for size in roots:
        if places.tiles is not None and size >= BEFORE:
            check_tiles(places.tiles, lines, size)
    (folder / "outcome.json").write_text(json.dumps(result))


def in_child(function: Callable[[], None]) -> int:
    """Run *function* in a child and return how it ended (0, or minus the signal)."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def deaths(folder: Path, fatal: list[int]) -> dict[str, Any]:
    """Kill a job at each of the steps *fatal* in turn, then run it to its end."""
    ends = []
    for step in fatal:
        (folder / "last-step").unlink(missing_ok=True)
        status = in_child(partial(job, folder, step))
        ends.append((status, (folder / "last-step").read_text() if status == -signal.SIGKILL else None))
    status = in_child(partial(job, folder, None))
    result = json.loads((folder / "outcome.json").read_text()) if status == 0 else {}
    return {**result, "fatal": fatal, "ends": ends, "status": status}


def plans(steps: int, seed: int, count: int) -> Iterator[list[int]]:
    if not count:
        yield from ([step] for step in range(1, steps + 1))
    draw = random.Random(seed)
    for _ in range(count):
        yield [draw.randrange(1, steps + 1) for _ in range(draw.choice([1, 1, 2]))]


def main() -> None:
    base, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kept = base / "kept"
    kept.mkdir()
    assert in_child(partial(job, kept, None, first=0, last=BEFORE)) == 0
    shutil.copytree(kept, base / "undisturbed")
    undisturbed = deaths(base / "undisturbed", [])
    print(json.dumps(undisturbed), flush=True)
    for number, fatal in enumerate(plans(len(undisturbed["steps"]), seed, count)):
        folder = base / str(number)
        shutil.copytree(kept, folder)
        print(json.dumps(deaths(folder, fatal)), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
