"""A batch writer that dies, over and over: run as a program, once for many deaths.

``python crash_loop.py FOLDER SEED COUNT HOW`` runs the same job COUNT times on fresh folders, in forked children that
are killed by SIGKILL: with HOW ``steps`` at drawn steps (before or after any call of the journal, the storage, the
ledger and the observer, and before any rename of a file), with ``packed`` at drawn steps of a job whose cuts are packed
before the writer takes them, with ``times`` at drawn moments. Each is then run again,
undisturbed, and a line of JSON says what came of it. The first line is that of a job nobody disturbed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchWriter,
    CutLimits,
    LocalCas,
    LogLedger,
    Observer,
    replay,
)
from millstream.anchoring.packing import pack_cut
from millstream.core.clock import SystemClock
from millstream.log import open_store
from millstream.testing.batches import CONFIG, make_batches, make_rejects

BATCHES = list(make_batches(13))
STEPS = {
    "journal": ("add", "prepare", "prepare_packed", "anchored", "observed"),
    "cas": ("put_many",),
    "ledger": ("append",),
    "index": ("record",),
    "observer": ("observe",),
}


class Steps:
    """Counts the steps of a job, and kills the process at one of them."""

    def __init__(self, fatal: int | None) -> None:
        self._fatal = fatal
        self.taken = 0

    def take(self) -> None:
        self.taken += 1
        if self.taken == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, thing: Any, names: tuple[str, ...]) -> None:
        for name in names:
            setattr(thing, name, self._counted(getattr(thing, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.take()
            result = function(*args, **kwargs)
            self.take()
            return result

        return counted


def job(folder: Path, how: str, steps: Steps) -> None:
    """Add all batches in small runs and anchor them, as a caller does who knows nothing of an earlier run."""
    folder.mkdir(exist_ok=True)
    sys.addaudithook(lambda event, _: steps.take() if event == "os.rename" else None)
    engine = sa.create_engine(f"sqlite:///{folder / 'node.db'}")
    with open_store(f"sqlite:///{folder / 'log.db'}") as store:
        parts: dict[str, Any] = {
            "journal": BatchJournal(engine),
            "cas": LocalCas(folder / "cas"),
            "ledger": LogLedger(store, SystemClock()),
            "index": AnchorIndex(engine),
        }
        parts["observer"] = Observer(parts["index"], parts["cas"], parts["ledger"])
        for name, names in STEPS.items():
            steps.around(parts[name], names)
        limits = CutLimits(batches=5, file_bytes=3000)
        writer = BatchWriter(parts["journal"], parts["cas"], parts["ledger"], parts["observer"], limits=limits)
        writer.recover()
        if how == "packed":
            take_all(writer, parts, limits)
        else:
            add_all(writer)
        writer.cut(force=True)
        outcome(folder, parts, steps.taken)
    engine.dispose()


def add_all(writer: BatchWriter) -> None:
    for start in range(0, len(BATCHES), 4):
        rejects = make_rejects(range(900 + start, 904 + start))
        writer.add("weather", BATCHES[start : start + 4], rejects, config=CONFIG)
        writer.cut()


def take_all(writer: BatchWriter, parts: dict[str, Any], limits: CutLimits) -> None:
    writer.add("weather", [], make_rejects(range(900, 904)), config=CONFIG)
    known = parts["journal"].known_roots("weather", [batch.batch for batch in BATCHES])
    left = [batch for batch in BATCHES if batch.batch not in known]
    for start in range(0, len(left), limits.batches):
        cut = pack_cut(parts["cas"], left[start : start + limits.batches], limits.file_bytes)
        assert writer.take("weather", cut, config=CONFIG) is not None


def outcome(folder: Path, parts: dict[str, Any], taken: int) -> None:
    result = {
        "anchors": [entry.anchor_string for entry in parts["ledger"].entries()],
        "findings": [finding.reason for finding in replay(parts["cas"], parts["ledger"], parts["index"]).findings],
        "observed": parts["journal"].totals().observed,
        "waiting_rejects": parts["journal"].totals().waiting_rejects,
        "files": list(parts["cas"].cids()),
        "steps": taken,
    }
    (folder / "outcome.json").write_text(json.dumps(result))


def in_child(function: Callable[[], None], kill_after: float | None = None) -> int:
    """Run *function* in a child and return how it ended (0, or minus the signal)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while signal.sigtimedwait([signal.SIGCHLD], 0) is not None:
        pass  # news of an earlier child
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        function()
        os._exit(0)
    if kill_after is not None and signal.sigtimedwait([signal.SIGCHLD], kill_after) is None:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    base, draw, count, how = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3]), sys.argv[4]
    started = time.perf_counter()
    in_child(partial(job, base / "undisturbed", how, Steps(None)))
    seconds = time.perf_counter() - started
    undisturbed = report(base / "undisturbed", [0])
    points = range(1, undisturbed["steps"] + 1)
    for number in range(count):
        folder, ends = base / str(number), []
        if how == "times":
            seconds = kill_in_time(folder, draw, seconds)
            ends.append(-signal.SIGKILL)
        for _ in range(draw.choice([1, 1, 2]) - len(ends)):
            if how == "times":
                ends.append(in_child(partial(job, folder, how, Steps(None)), draw.uniform(0, seconds)))
            else:
                ends.append(in_child(partial(job, folder, how, Steps(draw.choice(points)))))
        ends.append(in_child(partial(job, folder, how, Steps(None))))
        report(folder, ends)


def kill_in_time(folder: Path, draw: random.Random, seconds: float) -> float:
    """Kill a job at a moment of its *seconds*; one that ended before begins anew. Returns the seconds of that."""
    while True:
        started = time.perf_counter()
        if in_child(partial(job, folder, "times", Steps(None)), draw.uniform(0, seconds)) == -signal.SIGKILL:
            return seconds
        seconds = time.perf_counter() - started
        shutil.rmtree(folder)


def report(folder: Path, ends: list[int]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    print(json.dumps({**result, "ends": ends}), flush=True)
    return result


if __name__ == "__main__":
    main()
