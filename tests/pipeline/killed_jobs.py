"""Every job over stored data, one after the other, as a program to be killed: ``python killed_jobs.py FOLDER SEED``.

Run again it goes on where it was. Its tasks die the first time they are tried, a quarter of them; SEED decides how many
cores there are, and into how many parts data is dealt. What the jobs say that write nothing ends in ``told.json``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from pyspark.sql import SparkSession

from millstream.batching import BatchConfig, Rulebook
from millstream.core.canonical import canonical_json
from millstream.log import LogSpec
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair
from millstream.node import Node
from millstream.pipeline.job_log import job_log_file
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.audit import audit_anchors, audit_identifiers
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.jobs.changes import find_changes
from millstream.pipeline.jobs.duplication import copy_missing, plan_duplication
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.inventory import run_inventory
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.jobs.statistics import space_statistics
from millstream.pipeline.jobs.verify_batches import verify_batches
from millstream.pipeline.session import SparkOptions, spark_session
from millstream.pipeline.source import NAME, follow_log, read_log, write_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.settings import AnchoringSettings, Settings
from millstream.testing.mortal_tasks import MORTAL

PAIR = Pair("a", "b")
SPACE = "docs"
RULES = BatchConfig(window=50, max_delay=20)
TRIGGERS = 12
"""About how many triggers the stream takes at most."""


def settings_of(folder: Path) -> Settings:
    """Those of the node below *folder*; it makes several anchors."""
    return Settings(data=str(folder / "node"), anchoring=AnchoringSettings(max_batches=100))


def main(folder: Path, seed: int) -> None:
    """Run the jobs for messages, then those for content, with both audits at the end of them."""
    draw = random.Random(seed)
    options = SparkOptions(f"local[{draw.randint(1, 3)},3]", shuffle_partitions=draw.randint(1, 6), confs=MORTAL)
    with (
        spark_session(folder / "work", options) as spark,
        Node.open(settings_of(folder)) as node,
        spark_errors_explained("jobs"),
        job_log_file(folder / "jobs.jsonl"),
    ):
        told = take_messages(spark, node, folder) | take_content(spark, folder)
        audit_anchors(
            spark, folder / "jobs", node.anchoring.ledger, node.anchoring.cas_url, index=node.anchoring.observer.index
        )
        registry = node.registry.instance
        known = audit_identifiers(
            spark, node.registry.ledger, node.anchoring.cas_url, registry.versions, registry.history
        )
        (folder / "told.json").write_bytes(canonical_json(told | {"identifiers": known.record.counts}))


def take_messages(spark: SparkSession, node: Node, folder: Path) -> dict[str, Any]:
    """Write a log from a frame and from a stream, batch and anchor it, verify the batches that a service made of it."""
    url, jobs = node.settings.log_url, folder / "jobs"
    write_log(read_log(spark, url, "in", partition_bytes=1), url, "written", write="once")
    per_trigger = max(150, node.logs.store.log(LogSpec("in")).last_id // TRIGGERS)
    stream = follow_log(spark, url, "in", per_trigger=per_trigger).writeStream.format(NAME).option("store", url)
    stream = stream.option("log", "streamed").option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    batches = run_batch(spark, jobs, url, "in", RULES, flush=True)
    anchor_history(
        batches, "in", node.anchoring.batch_writer, msgspec.to_builtins(RULES), spark=spark, cas=node.anchoring.cas_url
    )
    found = {name: verify_batches(spark, url, "in", name, Rulebook(RULES)) for name in ("served", "wrong")}
    return {name: msgspec.to_builtins(each) | {"seconds": 0} for name, each in found.items()}


def take_content(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Plan and copy, say what has changed, sweep and judge."""
    jobs, stores = folder / "jobs", {name: (folder / name).as_uri() for name in ("a", "b")}
    manifest = Manifest(sa.create_engine(f"sqlite:///{folder / 'manifest.db'}"))
    before = run_inventory(spark, jobs, "1", stores, spaces=[SPACE])
    planned = plan_duplication(spark, jobs, "run", stores, manifest, pair=PAIR, space=SPACE)
    copy_missing(spark, planned, stores, manifest, bin_bytes=1 << 17)
    now = run_inventory(spark, jobs, "2", stores, spaces=[SPACE])
    find_changes(spark, jobs, now, before)
    sweep = run_integrity(spark, jobs, "run", stores, manifest.rows(), spaces=[SPACE], bin_bytes=1 << 17)
    run_report(spark, jobs, sweep)
    return {"statistics": msgspec.to_builtins(space_statistics(spark, now, before))}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
