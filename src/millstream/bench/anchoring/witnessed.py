"""A ledger that three witnesses cosign: what an anchor takes beside them, and when its checkpoint has the quorum."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.clock import SystemClock
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG, make_batch

WITNESSES = 3
_ANCHORS: dict[Size, int] = {"quick": 3, "small": 100, "full": 300}
_SERVE_SECONDS = 0.5
"""How often ``millstream serve`` looks whether there is a checkpoint to offer."""

_clock = SystemClock()


def witnessed_ledger(size: Size, folder: Path) -> Iterator[Comparison]:
    """Anchors without witnesses, with three, and with three that are unreachable; and the time until the quorum."""
    bench = _Witnessed(folder / "witnessed", _ANCHORS[size])
    yield Comparison(
        title=f"An anchor with {WITNESSES} witnesses",
        unit="ms",
        conditions="An anchor: one batch is read, its files are written, the entry is appended, and the tree is "
        f"extended and signed; all of this is durable. The figure is the median of {_ANCHORS[size]} anchors. At the "
        "same time "
        "the node asks the witnesses, as `millstream serve` does. The witnesses are processes on the same machine, "
        "and write durably before they answer.",
        contenders=[
            Contender("no witnesses", partial(bench.anchors, "none")),
            Contender("three that answer", partial(bench.anchors, "all")),
            Contender("three that are unreachable", partial(bench.anchors, "away")),
        ],
    )
    yield Comparison(
        title=f"The quorum of two of {WITNESSES} witnesses",
        unit="ms",
        conditions="The time from the end of an anchor until two cosignatures are stored with its checkpoint: the "
        f"median of {_ANCHORS[size] // 3} anchors. `millstream serve` checks every {_SERVE_SECONDS:g} s whether "
        "there is a new checkpoint, and then asks the witnesses.",
        contenders=[
            Contender("witnesses asked immediately", partial(bench.quorums, 0.0)),
            Contender("witnesses asked as by millstream serve", partial(bench.quorums, _SERVE_SECONDS)),
        ],
    )


class _Witnessed:
    """A node in *folder* whose ledger gets *count* anchors."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._numbers = itertools.count()

    def anchors(self, witnesses: str) -> Measurement:
        """The milliseconds of an anchor while the *witnesses* (``none``, ``all``, ``away``) are asked."""
        with self._opened(witnesses) as node:
            ended = threading.Event()
            collector = node.ledgers.cosignatures.collector("anchors")

            def collect() -> None:
                while collector is not None and not ended.wait(_SERVE_SECONDS):
                    collector.collect()

            asking = threading.Thread(target=collect)
            asking.start()
            taken = [_anchor(node, number) for number in range(2, self._count + 2)]
            ended.set()
            asking.join()
        return _milliseconds(taken)

    def quorums(self, pause: float) -> Measurement:
        """The milliseconds from an anchor to the quorum, where the node looks every *pause* seconds."""
        with self._opened("all") as node:
            collector, taken = node.ledgers.cosignatures.required_collector("anchors"), list[float]()
            ended, complete = threading.Event(), threading.Event()

            def collect() -> None:
                while not ended.wait(pause):
                    if collector.collect():
                        complete.set()

            asking = threading.Thread(target=collect)
            asking.start()
            for number in range(2, self._count // 3 + 2):
                _anchor(node, number)
                begin = _clock.monotonic()
                complete.clear()
                while (found := collector.status().complete) is None or found.size < number:
                    complete.wait(0.001)
                taken.append(_clock.monotonic() - begin)
            ended.set()
            asking.join()
        return _milliseconds(taken)

    @contextlib.contextmanager
    def _opened(self, witnesses: str) -> Iterator[Node]:
        """A new node with one anchor, which *witnesses* cosign."""
        place = self._folder / str(next(self._numbers))
        data, policy = place / "node", place / "policy"
        data.mkdir(parents=True)
        if witnesses != "none":
            (data / "millstream.toml").write_text(f'[anchoring]\nwitness_policy = "{policy}"\n', "utf-8")
        with contextlib.ExitStack() as stack:
            node = stack.enter_context(Node.open(load_settings({"data": str(data)}, environment={})[0], create=True))
            key = node.ledgers.keys("anchors").create("example.org/bench")
            running = contextlib.ExitStack()
            lines = [f"log {key}"]
            for number in range(WITNESSES if witnesses != "none" else 0):
                vkey, url = running.enter_context(_witness(place / f"witness-{number}", str(key)))
                lines.append(f"witness w{number} {vkey} {url}")
            names = " ".join(f"w{number}" for number in range(WITNESSES))
            policy.write_text("\n".join([*lines, f"group two 2 {names}", "quorum two", ""]), "utf-8")
            if witnesses == "away":
                running.close()
            stack.callback(running.close)
            _anchor(node, 1)
            yield node
        shutil.rmtree(place)


def _anchor(node: Node, number: int) -> float:
    """Anchor a batch of the message *number*; the seconds it took."""
    batch, writer = make_batch([number]), node.anchoring.batch_writer
    begin = _clock.monotonic()
    writer.add("bench", [batch], config=CONFIG)
    writer.cut(force=True)
    return _clock.monotonic() - begin


def _milliseconds(taken: list[float]) -> Measurement:
    values = sorted(seconds * 1000 for seconds in taken)
    return Measurement(statistics.median(values), {"p95 ms": values[int(len(values) * 0.95)]})


@contextlib.contextmanager
def _witness(folder: Path, log: str) -> Iterator[tuple[str, str]]:
    """A witness of the ledger with the verifier key *log*: its own verifier key, and its URL."""
    folder.mkdir()
    options = ["--listen", "127.0.0.1:0", "--key", str(folder / "key"), "--log", log, "--rate", "100000"]
    command = [sys.executable, "-m", "millstream", "witness", "serve", *options, "--data", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as witness:
        try:
            assert witness.stdout is not None
            key, url = (witness.stdout.readline().split()[-1] for _ in range(2))
            yield key, url
        finally:
            witness.terminate()
