"""Every job on a standalone cluster, as a program of its own: a process has one Spark session.

``python cluster_jobs.py FOLDER MASTER LOG_STORE S3_STORE WORKER JOB [RESULTS]`` prints what came of it as JSON; the
process WORKER is killed in the middle of JOB. Results go to the URL RESULTS, or to the folder ``jobs`` of FOLDER.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.batching import BatchConfig
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.node import Node
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.audit import audit_anchors
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.jobs.duplication import copy_missing, plan_duplication
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.session import SparkOptions, spark_session
from millstream.pipeline.source import read_log, write_log
from millstream.settings import AnchoringSettings, LogSettings, Settings
from millstream.stores import LocalStore
from millstream.testing.waiting import until

RULES = BatchConfig(window=50, max_delay=20)
ITEMS = 60
MARKS = {
    "batch": "batch-*/attempt-*/data/_temporary",
    "copies": "duplication-*/copies-*/attempt-*/data/bin-*.parquet",
    "integrity": "integrity-*/attempt-*/data/bin-*.parquet",
}
"""A job is in its midst once there is such a file in the folder of jobs."""

URL_MARKS = {
    "batch": "batch-*/attempt-*/data/parts.json",
    "copies": "duplication-*/copies-*/attempt-*/data/parts.json",
    "integrity": "integrity-*/attempt-*/data/parts.json",
}
"""The same where results go to a URL."""


def messages(count: int) -> list[Message]:
    """Messages of a few sources in order of their receive times."""
    draw = random.Random(5)
    times = sorted(1000 + draw.randrange(count * 4) for _ in range(count))
    return [
        Message(b"%d" % n, f"k{n % 5}", f"s{n % 4}", time, time + draw.randrange(20)) for n, time in enumerate(times)
    ]


def main(
    folder: Path, master: str, log_url: str, s3_url: str, worker: int, job_name: str, results: str = ""
) -> dict[str, Any]:
    """Batch, anchor, audit, duplicate and sweep; what came of each."""
    sent = messages(3000)
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    confs = loopback | {"spark.executor.memory": "512m", "spark.speculation": "true"}
    options = SparkOptions(master, shuffle_partitions=4, confs=confs, results=results)
    anchoring = AnchoringSettings(cas=s3_url, max_batches=200)
    settings = Settings(data=str(folder / "node"), log=LogSettings(store=log_url), anchoring=anchoring)
    with spark_session(folder / "work", options) as spark, Node.open(settings, create=True) as node:
        with open_store(log_url) as store, store.log(LogSpec("in", block_messages=200)).writer() as writer:
            writer.append(sent)
        jobs = folder / "jobs"
        mark = (URL_MARKS if results else MARKS)[job_name]
        watch = threading.Thread(target=kill_in_the_midst, args=(jobs, mark, worker))
        watch.start()
        job = run_batch(spark, jobs, log_url, "in", RULES)
        handed = anchor_history(
            job, "in", node.anchoring.batch_writer, msgspec.to_builtins(RULES), spark=spark, cas=node.anchoring.cas_url
        )
        audited = audit_anchors(
            spark, jobs, node.anchoring.ledger, node.anchoring.cas_url, index=node.anchoring.observer.index
        )
        write_log(read_log(spark, log_url, "in"), log_url, "copy", staging=s3_url, write="copy")
        source, manifest = LocalStore(folder / "source"), Manifest(sa.create_engine(f"sqlite:///{folder / 'm.db'}"))
        fill(source, manifest)
        stores, pair = {"a": source.url, "b": s3_url}, Pair("a", "b")
        planned = plan_duplication(spark, jobs, "run", stores, manifest, pair=pair, space="docs")
        copied = copy_missing(spark, planned, stores, manifest, bin_bytes=1 << 17)
        sweep = run_integrity(spark, jobs, "run", stores, manifest.rows(), spaces=["docs"], bin_bytes=1 << 17)
        watch.join()
        judged = run_report(spark, jobs, sweep)
        return {
            "batches": sorted(batch.batch for batch in job.batches()),
            "anchored": handed.batches,
            "audit": [audited.record.counts["messages"], len(audited.findings)],
            "copied": copied.record.rows_out,
            "messages": node.logs.store.log(LogSpec("copy")).last_id,
            "reports": [[space.report.store, space.report.result, space.report.checked] for space in judged.spaces()],
        }


def fill(source: LocalStore, manifest: Manifest) -> None:
    """Put items into the space ``docs`` of *source* and record them."""
    draw = random.Random(6)
    source.create_space("docs")
    for number in range(ITEMS):
        info = source.put("docs", f"item-{number}", io.BytesIO(draw.randbytes(draw.randrange(100_000))))
        manifest.writer.record([ManifestEvent("a", "docs", info.content_id, 2**60, info.checksum(), info.size)])


def kill_in_the_midst(jobs: Path, mark: str, worker: int) -> None:
    """Kill the process *worker*, and the executors that it started, once there is a file like *mark* in *jobs*."""
    until(lambda: any(jobs.glob(mark)), mark, seconds=400)
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text("ascii").split()
    for pid in (worker, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5]), *sys.argv[6:])))
