"""The job ``anchor``: a log's batches into content-addressed files under the ledger, each once.

Of history, the job ``batch`` encodes on the executors, where cuts of its output are packed and written as well; the
driver has the batch writer take them. Of a stream, the log of batches is where both meet: a trigger's batches are
durable in it, and :class:`millstream.anchoring.feed.AnchorFeed` takes them from there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

from millstream.anchoring import BatchWriter
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.feed import GROUP_MESSAGES, FeedProgress, check_conflicts, cut, submit_batches
from millstream.anchoring.packing import PackedCut
from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.jobs.batch import BatchJob
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.pipeline.planning.cut_plans import CutRows, plan_cuts, read_plan
from millstream.pipeline.tasks.cut_packing import Packer

_MOST_REJECTS = 100_000


def anchor_history(
    job: BatchJob,
    log: str,
    writer: BatchWriter,
    config: Mapping[str, Any],
    *,
    spark: SparkSession | None = None,
    cas: str = "",
    clock: Clock | None = None,
) -> FeedProgress:
    """Anchor what came of *job* on *log*; *config* are the rules it was made by, as JSON members.

    Tasks of *spark* pack the cuts and write their files, where they reach the writer's storage by the URL *cas*
    (``auditing.open_cas``); else the writer does, which gives the same anchors. Raises what
    :func:`millstream.anchoring.feed.submit_batches` and the writer raise, and :class:`PipelineError` where tasks fail.
    """
    clock = clock or SystemClock()
    began, size = clock.monotonic(), 0
    writer.recover()
    done = FeedProgress()
    rejects = job.rejects()
    while some := list(itertools.islice(rejects, _MOST_REJECTS)):
        done = done.plus(submit_batches(writer, log, (), some, config))
    news = _NewBatches(writer, log)
    packer = Packer(spark, cas, writer.limits, plan_cuts(job.named(), writer.limits.batches, news))
    left: Iterable[CutRows] = ()
    with contextlib.closing(packer.cuts()) as cuts:
        for plan, packed in cuts:
            if packed is None or writer.take(log, packed, config=config) is None:
                packer.stop()
                left = itertools.chain([plan], (plan for plan, _ in cuts))
                break
            done, size = done.plus(_taken(packed)), size + packed.line_bytes
        for group in _grouped(itertools.chain.from_iterable(map(read_plan, left))):
            size += sum(len(batch.lines) for batch in group)
            done = done.plus(submit_batches(writer, log, group, (), config, sealed=True)).plus(cut(writer, force=False))
    done = done.plus(cut(writer, force=True)).plus(FeedProgress(known=news.known))
    inputs = {"log": log, "batches": job.record.inputs}
    counts = {"messages": done.messages, "rejects": done.rejects, "known": done.known, "anchors": done.anchors}
    seconds = round(clock.monotonic() - began, 3)
    log_record(
        JobRecord(
            job="anchor",
            inputs=inputs,
            rows_in=job.record.rows_out,
            rows_out=done.batches,
            bytes=size,
            seconds=seconds,
            counts=counts,
        )
    )
    return done


class _NewBatches:
    """Tells which batches of *log* the journal of *writer* does not know, nor its index, and counts the others."""

    def __init__(self, writer: BatchWriter, log: str) -> None:
        self._writer, self._log = writer, log
        self.known = 0

    def __call__(self, names: Sequence[str], roots: Sequence[str]) -> npt.NDArray[np.bool_]:
        accepted = self._writer.journal.known_roots(self._log, names)
        found = zip(names, roots, strict=True)
        check_conflicts(self._log, [name for name, root in found if accepted.get(name, root) != root])
        index = self._writer.index
        anchored = index.anchored_batches(self._log, names) if self._writer.is_journal_behind() else {}
        known = {*accepted, *anchored}
        self.known += len(known)
        return np.array([name not in known for name in names], np.bool_)


def _taken(packed: PackedCut) -> FeedProgress:
    messages = sum(file.messages for file in packed.files)
    return FeedProgress(batches=len(packed.members.names), messages=messages, anchors=1)


def _grouped(batches: Iterable[EncodedBatch]) -> Iterator[list[EncodedBatch]]:
    group: list[EncodedBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += len(batch.ids)
        if size >= GROUP_MESSAGES:
            yield group
            group, size = [], 0
    if group:
        yield group
