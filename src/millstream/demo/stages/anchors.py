"""Stages 2 and 3: messages become batches, and batches are anchored."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from millstream.anchoring.cut_manifest import MAX_FILE_BYTES
from millstream.demo.errors import DemoError
from millstream.demo.hourly_counts import HourlyCounts
from millstream.demo.runner import DemoRun, StageResult

if TYPE_CHECKING:
    from millstream.pipeline.jobs.batch import BatchJob

GROUP = 5_000
"""Batches that are accepted in one transaction."""


def batch_log(log: str) -> Callable[[DemoRun], StageResult]:
    """Batch *log* by event time, in a Spark job that uses the same batcher as everything else."""
    return lambda demo_run: _batch(demo_run, log)


def _batch(demo_run: DemoRun, log: str) -> StageResult:
    job = _job(demo_run, log)
    starts, batched = [], 0
    for batch in job.batches():
        starts.append(batch.header.start)
        batched += batch.header.count
    reasons = Counter(reject.reason for reject in job.rejects())
    messages = demo_run.figures[f"publish-{log}"].counts["messages"]
    if batched + reasons.total() != messages:
        raise DemoError(
            f"{messages:,} messages were stored, but {batched:,} are in batches and {reasons.total():,} were "
            "rejected: please report this"
        )
    _check(bool(starts), f"all {messages:,} messages were rejected ({_words(reasons)}); nothing can be anchored")
    hours = HourlyCounts.of(np.array(starts, np.int64))
    facts = {"rejected": dict(reasons), "messages": messages, "per_hour": msgspec.to_builtins(hours)}
    counts = {"messages": messages, "batches": len(starts), "in batches": batched, "rejected": reasons.total()}
    return StageResult(counts, job.record.bytes, facts)


def anchor_batches(demo_run: DemoRun) -> StageResult:
    """Hand the batches to the batch writer, which puts them into files and anchors those."""
    writer, logs = demo_run.node.anchoring.batch_writer, demo_run.plan.logs
    total = sum(demo_run.figures[_stage(demo_run, log)].counts["batches"] for log in logs)
    writer.recover()
    config, done = demo_run.node.batching.rules.plain, 0
    for log in logs:
        job, last = _job(demo_run, log), done + demo_run.figures[_stage(demo_run, log)].counts["batches"]
        rejects = list(job.rejects())
        for group in _groups(job):
            done += len(group)
            added = writer.add(log, group, rejects if done == last else (), config=config)
            _check(not added.conflicting, f"batch {' and '.join(added.conflicting)} is known with other messages in it")
            demo_run.step(done, total)
    writer.cut(force=True)
    entries = list(demo_run.node.anchoring.ledger.entries())
    files = list(demo_run.node.anchoring.cas.cids())
    size = sum(len(demo_run.node.anchoring.cas.get(cid, MAX_FILE_BYTES)) for cid in files)
    totals = demo_run.node.anchoring.observer.index.totals()
    _check(totals.batches == total, f"{total} batches were made, but {totals.batches} are anchored")
    facts = {"anchors": [entry.anchor_string for entry in entries], "head": entries[-1].hash}
    counts = {"batches": totals.batches, "messages": totals.messages, "anchors": len(entries), "files": len(files)}
    return StageResult(counts, size, facts)


def _stage(demo_run: DemoRun, log: str) -> str:
    return "batch" if log == demo_run.plan.log else f"batch-{log}"


def _job(demo_run: DemoRun, log: str) -> BatchJob:
    from millstream.pipeline.jobs.batch import run_batch

    node = demo_run.node
    last_id = demo_run.facts(f"publish-{log}")["last_id"]
    return run_batch(
        demo_run.spark, node.folder / "jobs", node.settings.log_url, log, node.batching.rules,
        last_id=last_id, clock=node.clock,
    )  # fmt: skip


def _groups(job: BatchJob) -> Any:
    batches = job.batches()
    while group := list(itertools.islice(batches, GROUP)):
        yield group


def _words(reasons: Mapping[Any, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoError(otherwise)
