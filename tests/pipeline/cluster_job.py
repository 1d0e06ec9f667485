"""Jobs as a program that ``spark-submit`` runs on a cluster: ``cluster_job.py FOLDER ADDRESSES JOB …``.

FOLDER is the driver's own; ADDRESSES are URLs by name, as JSON. Each job leaves ``JOB.began`` and ``JOB.done`` in it.
Prints results by job as JSON, with the number of executors that were lost. Run again, it resumes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from millstream.batching import BatchConfig
from millstream.node import Node
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.batch import BatchJob, run_batch
from millstream.pipeline.source import register
from millstream.settings import AnchoringSettings, LogSettings, Settings

RULES = BatchConfig(window=50, max_delay=20)
CONFIG = msgspec.to_builtins(RULES)
MAX_BATCHES = 200


class Jobs:
    """The jobs by name, on *spark*, for a node in *folder* and the stores at *urls*."""

    def __init__(self, spark: SparkSession, node: Node, folder: Path, urls: Mapping[str, str]) -> None:
        self._spark, self._node, self._urls = spark, node, urls
        self._folder, self._jobs = folder, folder / "jobs"

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

    def _batched(self) -> BatchJob:
        return run_batch(self._spark, self._jobs, self._urls["log"], "in", RULES)


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
            run: Callable[[], Any] = getattr(jobs, name)
            (folder / f"{name}.began").touch()
            results[name] = run()
            (folder / f"{name}.done").touch()
    results["lost"] = lost_executors(spark)
    spark.stop()
    return results


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])))
