"""The reader of a task: reads a log from the objects of its blocks, or else through the log store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, MissingBlockError
from millstream.log.batch import Batch
from millstream.log.gap import Gap, Gaps, is_wanted
from millstream.log.ids import IdRange
from millstream.log.reading.located_blocks import read_located
from millstream.log.reading.scan import cut_batches
from millstream.pipeline.block_ranges import IdRangePartition
from millstream.pipeline.reachable import require_identity
from millstream.pipeline.read_options import LogReadOptions
from millstream.stores import tiers

MOST_MESSAGES = 65_536


def read_run(request: LogReadOptions, run: IdRangePartition, columns: Sequence[str], gaps: Gaps) -> Iterator[Batch]:
    """The messages of *run*, with *columns* and *gaps* as for :meth:`millstream.log.Log.read`.

    What is not where the driver located it is read through the log, which says what has become of it.
    """
    require_identity(request.store, run.files)
    first_id = run.first_id
    for batch in _located(request, run, columns, gaps):
        yield batch
        first_id = batch.last_id + 1
    if first_id <= run.last_id:
        yield from _through_log(request, IdRange(first_id, run.last_id), columns, gaps)


def _through_log(request: LogReadOptions, ids: IdRange, columns: Sequence[str], gaps: Gaps) -> Iterator[Batch]:
    """The messages of *ids*, all of which the driver saw in the log: where it ends before them, they are missing."""
    expected = ids.first
    with tiers.open_log_store(request.store, clock=SystemClock(), create=False) as store:
        log = store.log(LogSpec(request.log), create=False)
        for batch in log.read(ids.first, ids.last, columns, gaps=gaps):
            yield batch
            expected = batch.last_id + 1
    if expected <= ids.last:
        error = MissingBlockError(request.log, expected, ids.last)
        gap = Gap(request.log, IdRange(expected, ids.last), "missing", columns, error=error)
        if not is_wanted(gap, gaps):
            raise error
        yield gap


def _located(request: LogReadOptions, run: IdRangePartition, columns: Sequence[str], gaps: Gaps) -> Iterator[Batch]:
    """The first messages of *run*, up to the first block that is not where the driver located it."""
    locations = run.locations
    if not locations:
        return
    with (
        contextlib.closing(tiers.open_bucket(request.store)) as bucket,
        contextlib.closing(read_located(request.log, locations, bucket.get)) as blocks,
    ):
        ids = IdRange(run.first_id, run.last_id)
        yield from cut_batches(blocks, ids, log=request.log, max_messages=MOST_MESSAGES, columns=columns, gaps=gaps)
