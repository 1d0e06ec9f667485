"""Stages 2 and 3: messages become batches, and batches are anchored."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from millstream.demo.errors import DemoError
from millstream.demo.hours import Hours
from millstream.demo.road import Done, Walk
from millstream.pipeline.jobs.batch import BatchJob, run_batch

GROUP = 5_000
"""Batches that are accepted in one transaction."""


def batch_log(walk: Walk) -> Done:
    """Batch the log by event time, in a Spark job that uses the same batcher as everything else."""
    job = _job(walk)
    starts, batched = [], 0
    for batch in job.batches():
        starts.append(batch.header.start)
        batched += batch.header.count
    reasons = Counter(reject.reason for reject in job.rejects())
    messages = walk.figures[f"publish-{walk.plan.log}"].counts["messages"]
    if batched + reasons.total() != messages:
        raise DemoError(f"{messages} messages, but {batched} in batches and {reasons.total()} rejected")
    _check(bool(starts), f"all {messages:,} messages were rejected ({_words(reasons)}); nothing can be anchored")
    hours = Hours.of(np.array(starts, np.int64))
    facts = {"rejected": dict(reasons), "messages": messages, "per_hour": msgspec.to_builtins(hours)}
    counts = {"messages": messages, "batches": len(starts), "in batches": batched, "rejected": reasons.total()}
    return Done(counts, job.record.bytes, facts)


def anchor_batches(walk: Walk) -> Done:
    """Hand the batches to the batch writer, which puts them into files and anchors those."""
    writer, job, total = walk.node.batch_writer, _job(walk), walk.figures["batch"].counts["batches"]
    writer.recover()
    config, rejects = walk.node.rules.plain, list(job.rejects())
    done = 0
    for group in _groups(job):
        done += len(group)
        added = writer.add(walk.plan.log, group, rejects if done == total else (), config=config)
        _check(not added.conflicting, f"batch {' and '.join(added.conflicting)} is known with other messages in it")
        walk.step(done, total)
    writer.cut(force=True)
    entries = list(walk.node.ledger.entries())
    files = list(walk.node.cas.cids())
    size = sum((walk.node.folder / "cas" / cid).stat().st_size for cid in files)
    totals = walk.node.observer.index.totals()
    _check(totals.batches == total, f"{total} batches were made, but {totals.batches} are anchored")
    facts = {"anchors": [entry.anchor_string for entry in entries], "head": entries[-1].hash}
    counts = {"batches": totals.batches, "messages": totals.messages, "anchors": len(entries), "files": len(files)}
    return Done(counts, size, facts)


def _job(walk: Walk) -> BatchJob:
    node = walk.node
    last_id = walk.facts(f"publish-{walk.plan.log}")["last_id"]
    return run_batch(
        walk.spark, node.folder / "jobs", node.settings.log_url, walk.plan.log, node.rules,
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
