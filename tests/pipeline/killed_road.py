"""Every job that writes, one after the other, as a program to be killed: ``python killed_road.py FOLDER SEED KILLS``.

Run again it goes on where it was. Meanwhile it kills KILLS Python workers of its own, so that tasks fail in mid-work
and are tried again. It ends with 0 when all is done, and with 1 where a task was hit too often, or the planning of a
query was.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import sqlalchemy as sa

from millstream.batching import BatchConfig
from millstream.log import LogSpec
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair
from millstream.node import Node
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.failures import explained
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.audit import audit_anchors
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.jobs.duplication import copy_missing, plan_duplication
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.session import SparkOptions, spark_session
from millstream.pipeline.source import NAME, follow_log, read_log, write_log
from millstream.settings import AnchoringSettings, Settings

PAIR = Pair("a", "b")
SPACE = "docs"
RULES = BatchConfig(window=50, max_delay=20)
TRIGGERS = 12
"""About how many triggers the stream takes at most."""


def settings_of(folder: Path) -> Settings:
    """Those of the node below *folder*; it makes several anchors."""
    return Settings(data=str(folder / "node"), anchoring=AnchoringSettings(max_batches=100))


def main(folder: Path, seed: int, kills: int) -> None:
    """Write a log from a frame and from a stream, batch and anchor, plan and copy, sweep and judge, audit."""
    settings = settings_of(folder)
    url, jobs = settings.log_url, folder / "jobs"
    stores = {name: (folder / name).as_uri() for name in ("a", "b")}
    manifest = Manifest(sa.create_engine(f"sqlite:///{folder / 'manifest.db'}"))
    with (
        spark_session(folder / "work", SparkOptions(master="local[2,3]")) as spark,
        killing_workers(seed, kills),
        Node.open(settings) as node,
        explained("road"),
    ):
        write_log(read_log(spark, url, "in", partition_bytes=1), url, "written", write="once")
        per_trigger = max(150, node.store.log(LogSpec("in")).last_id // TRIGGERS)
        stream = follow_log(spark, url, "in", per_trigger=per_trigger).writeStream.format(NAME).option("store", url)
        stream = stream.option("log", "streamed").option("checkpointLocation", str(folder / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()
        batches = run_batch(spark, jobs, url, "in", RULES, flush=True)
        anchor_history(batches, "in", node.batch_writer, msgspec.to_builtins(RULES), spark=spark, cas=node.cas_url)
        planned = plan_duplication(spark, jobs, "run", stores, manifest, pair=PAIR, space=SPACE)
        copy_missing(spark, planned, stores, manifest, bin_bytes=1 << 17)
        sweep = run_integrity(spark, jobs, "run", stores, manifest.rows(), spaces=[SPACE], bin_bytes=1 << 17)
        run_report(spark, jobs, sweep)
        audit_anchors(spark, jobs, node.ledger, node.cas_url, index=node.observer.index)


@contextlib.contextmanager
def killing_workers(seed: int, kills: int) -> Iterator[None]:
    """Kill *kills* Python workers of this process, one every now and then, while the block runs."""
    ended, draw = threading.Event(), random.Random(seed)

    def kill() -> None:
        left = kills
        while left and not ended.wait(draw.uniform(0.3, 3)):
            daemons = [pid for machine in children(os.getpid()) for pid in children(machine)]
            if workers := [pid for daemon in daemons for pid in children(daemon)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(workers), signal.SIGKILL)
                left -= 1

    thread = threading.Thread(target=kill, name="killer")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        found = [path.read_text("ascii").split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(word) for words in found for word in words]
    return []


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except PipelineError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
