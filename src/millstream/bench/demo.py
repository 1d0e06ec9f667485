"""The demo from its start to its end, in a process of its own as a user starts it."""

from __future__ import annotations

import functools
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from millstream.bench.peers import load_peers
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.clock import SystemClock

LIMIT: dict[Size, int | None] = {"quick": 2_000, "small": None, "full": None}
"""Measurements of the weather; the demo has 211,000."""


class DemoPeers(Protocol):
    """What the module of the peers has for this benchmark."""

    def floor_command(self, folder: Path) -> Sequence[str]:
        """The command of a program that runs the same steps in the new *folder*."""
        ...

    def floor_environment(self) -> Mapping[str, str]:
        """The environment in which the command finds its modules."""
        ...


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """One comparison: the demo, and in a checkout a minimal program for the same steps."""
    turns, limit = itertools.count(), LIMIT[size]
    given = [] if limit is None else [str(limit)]

    def demo() -> Measurement:
        options = [*(("--limit", *given) if given else ()), "--data", str(folder / f"demo-{next(turns)}")]
        return _measured([sys.executable, "-m", "millstream", "demo", *options], {})

    def floor(peers: DemoPeers) -> Measurement:
        return _measured([*peers.floor_command(folder / f"floor-{next(turns)}"), *given], peers.floor_environment())

    contenders = [Contender("millstream demo", demo)]
    peers = cast(DemoPeers | None, load_peers("demo"))
    if peers is not None:
        contenders.append(Contender("minimal program", functools.partial(floor, peers)))
    yield Comparison(
        title="The demo",
        unit="s",
        conditions=(
            "Each run is a process with a new folder, and includes the start of Python and Spark. The minimal program "
            "takes the same records and files through the same steps: batches on Spark, files under their hashes, "
            "anchors, two copies of each file, three sweeps on Spark, and the repair of two copies. It has no "
            "policies, queues, audit log, reports, proofs or resumption. CPU s: of all processes that a run waits for."
        ),
        contenders=contenders,
    )


def _measured(command: Sequence[str], environment: Mapping[str, str]) -> Measurement:
    clock, before = SystemClock(), resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = clock.monotonic()
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=False)
    seconds, after = clock.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr.decode("utf-8", "replace")[-2000:]
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measurement(seconds, {"CPU s": used})
