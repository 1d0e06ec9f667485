"""Jobs as a program that ``spark-submit`` runs on a cluster: ``cluster_job.py FOLDER ADDRESSES JOB …``.

FOLDER is the driver's own; ADDRESSES are URLs by name, as JSON. Each job leaves ``JOB.began`` in it, and its result as
JSON in ``JOB.done``. Prints results by job as JSON, with the number of executors that were lost. Run again, it resumes
with the job that was not done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from pyspark.sql import SparkSession

from millstream.batching import BatchConfig
from millstream.core.durable import write_durably
from millstream.log import LogSpec
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair
from millstream.node import Node
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.audit import audit_anchors
from millstream.pipeline.jobs.batch import BatchJob, run_batch
from millstream.pipeline.jobs.duplication import copy_missing, plan_duplication
from millstream.pipeline.jobs.ingest import run_ingest
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.inventory import run_inventory
from millstream.pipeline.output.job_folder import parquet_rows
from millstream.pipeline.planning.source_files import find_files
from millstream.pipeline.source import read_log, register, write_log
from millstream.pipeline.tasks.file_parsing import ParsingRules
from millstream.settings import AnchoringSettings, LogSettings, Settings
from millstream.stores import all_entries, open_provider

RULES = BatchConfig(window=50, max_delay=20)
CONFIG = msgspec.to_builtins(RULES)
MAX_BATCHES = 200
BIN_BYTES = 1 << 17


class Jobs:
    """The jobs by name, on *spark*, for a node in *folder* and the stores at *urls*."""

    def __init__(self, spark: SparkSession, node: Node, folder: Path, urls: Mapping[str, str]) -> None:
        self._spark, self._node, self._urls = spark, node, urls
        self._folder, self._jobs = folder, folder / "jobs"
        self._manifest = Manifest(sa.create_engine(f"sqlite:///{folder / 'manifest.db'}"))

    def batch(self) -> Any:
        job = self._batched()
        return [
            sorted(batch.batch for batch in job.batches()),
            [list(each) for each in map(msgspec.structs.astuple, job.rejects())],
        ]

    def anchor(self) -> Any:
        anchoring = self._node.anchoring
        writer, job = anchoring.batch_writer, self._batched()
        anchor_history(job, "in", writer, CONFIG, spark=self._spark, cas=anchoring.cas_url)
        return [entry.anchor_string for entry in anchoring.ledger.entries()]

    def anchors_without_spark(self) -> Any:
        """What the batch writer of another node makes by itself of the same batches."""
        settings = Settings(data=str(self._folder / "other"), anchoring=AnchoringSettings(max_batches=MAX_BATCHES))
        with Node.open(settings, create=True) as other:
            anchor_history(self._batched(), "in", other.anchoring.batch_writer, CONFIG)
            return [entry.anchor_string for entry in other.anchoring.ledger.entries()]

    def audit(self) -> Any:
        anchoring = self._node.anchoring
        index = anchoring.observer.index
        done = audit_anchors(self._spark, self._jobs, anchoring.ledger, anchoring.cas_url, index=index)
        return [done.record.counts, len(done.findings)]

    def ingest(self) -> Any:
        files = find_files([Path(self._urls["files"])])
        run_ingest(self._spark, self._urls["log"], "ingested", files, ParsingRules(), staging=self._urls["staging"])
        return self._rows_of("ingested")

    def sink(self) -> Any:
        rows = read_log(self._spark, self._urls["log"], "in", partition_bytes=1)
        write_log(rows, self._urls["log"], "copy", staging=self._urls["staging"], write="copy")
        return self._rows_of("copy")

    def inventory(self) -> Any:
        return run_inventory(self._spark, self._jobs, "run", self._stores, spaces=["docs"]).record.counts

    def integrity(self) -> Any:
        rows = self._manifest.rows()
        sweep = run_integrity(
            self._spark, self._jobs, "run", self._stores, rows, spaces=["docs"], bin_bytes=BIN_BYTES
        )  # fmt: skip
        columns = ["store", "content_id", "content"]
        facts = [row for part in parquet_rows(sweep.facts, columns, rows=1024) for row in part.to_pylist()]
        return sorted([row[column] for column in columns] for row in facts)

    def duplication(self) -> Any:
        pair = Pair("a", "b")
        planned = plan_duplication(
            self._spark, self._jobs, "run", self._stores, self._manifest, pair=pair, space="docs"
        )  # fmt: skip
        copy_missing(self._spark, planned, self._stores, self._manifest, bin_bytes=BIN_BYTES)
        store = open_provider(self._urls["b"])
        copied = sorted(
            (each.content_id, store.info("docs", each.content_id).checksum()) for each in all_entries(store, "docs")
        )
        return [copied, [self._manifest.get("b", "docs", name) is not None for name, _ in copied]]

    @property
    def _stores(self) -> dict[str, str]:
        return {name: self._urls[name] for name in ("a", "b")}

    def _batched(self) -> BatchJob:
        return run_batch(self._spark, self._jobs, self._urls["log"], "in", RULES)

    def _rows_of(self, name: str) -> Any:
        """How many messages the log has, and a hash of them in their order."""
        found = [
            (message.body, message.key, message.source, message.event_time, message.headers)
            for batch in self._node.logs.store.log(LogSpec(name), create=False).read()
            for message in batch
        ]
        return [len(found), sha256(repr(found).encode()).hexdigest()]


def lost_executors(spark: SparkSession) -> int:
    """How many executors of this application are no more, by Spark's own list."""
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(False)  # type: ignore[union-attr]
    return sum(not listed.apply(number).isActive() for number in range(listed.size()))


def main(folder: Path, urls: Mapping[str, str], names: list[str]) -> dict[str, Any]:
    """Run the jobs *names* in their order; the result of each, and how many executors were lost."""
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    anchoring = AnchoringSettings(cas=urls["cas"], max_batches=MAX_BATCHES)
    settings = Settings(data=str(folder / "node"), log=LogSettings(store=urls["log"]), anchoring=anchoring)
    results: dict[str, Any] = {}
    with Node.open(settings, create=True) as node:
        jobs = Jobs(spark, node, folder, urls)
        for name in names:
            done = folder / f"{name}.done"
            if not done.exists():
                run: Callable[[], Any] = getattr(jobs, name)
                (folder / f"{name}.began").touch()
                write_durably(done, json.dumps(run()).encode())
            results[name] = json.loads(done.read_bytes())
    results["lost"] = lost_executors(spark)
    spark.stop()
    return results


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])))
