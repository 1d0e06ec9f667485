"""The job ``anchor``: a log's batches into content-addressed files under the ledger, each once.

Of history, the job ``batch`` encodes on the executors, and the driver hands its output to the batch writer. Of a
stream, the log of batches is where both meet: a trigger's batches are durable in it, and
:class:`millstream.anchoring.feed.AnchorFeed` takes them from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millstream.anchoring import BatchWriter
from millstream.anchoring.feed import GROUP_MESSAGES, Handed, cut, hand_over
from millstream.anchoring.records import EncodedBatch
from millstream.core.clock import Clock, SystemClock
from millstream.pipeline.jobs.batch import BatchJob
from millstream.pipeline.jobs.folder import JobRecord, log_record

_MOST_REJECTS = 100_000


def anchor_history(
    job: BatchJob, log: str, writer: BatchWriter, config: Mapping[str, Any], *, clock: Clock | None = None
) -> Handed:
    """Anchor what came of *job* on *log*; *config* are the rules it was made by, as JSON members.

    Raises what :func:`millstream.anchoring.feed.hand_over` and the batch writer raise.
    """
    clock = clock or SystemClock()
    began, size = clock.monotonic(), 0
    writer.recover()
    done = Handed()
    rejects = job.rejects()
    while some := list(itertools.islice(rejects, _MOST_REJECTS)):
        done = done.plus(hand_over(writer, log, (), some, config))
    for group in _grouped(job.batches()):
        size += sum(len(batch.lines) for batch in group)
        done = done.plus(hand_over(writer, log, group, (), config, sealed=True)).plus(cut(writer, force=False))
    done = done.plus(cut(writer, force=True))
    inputs = {"log": log, "batches": job.record.inputs}
    counts = {"messages": done.messages, "rejects": done.rejects, "known": done.known, "anchors": done.anchors}
    seconds = round(clock.monotonic() - began, 3)
    log_record(JobRecord("anchor", inputs, job.record.rows_out, done.batches, size, seconds, counts))
    return done


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
