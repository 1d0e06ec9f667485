"""Runs of blocks: how the reading of a log is shared out among tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import InputPartition

from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.request import LogRequest
from millstream.stores.tiers import open_store

MOST_PARTITIONS = 10_000


class BlockRun(InputPartition):
    """Messages *first_id* to *last_id*, the work of one task."""

    def __init__(self, first_id: int, last_id: int) -> None:
        super().__init__((first_id, last_id))
        self.first_id = first_id
        self.last_id = last_id


def plan_runs(request: LogRequest, first_id: int | None, last_id: int | None) -> Iterator[BlockRun]:
    """The runs of the log of *request* from *first_id* to *last_id*, of the size that it asks for.

    None stands for the first and the last message that the log has. Raises :class:`PipelineInputError` where it was
    trimmed beyond *first_id*.
    """
    with open_store(request.store, clock=SystemClock()) as store:
        log = store.log(LogSpec(request.log), create=False)
        if first_id is not None and first_id < log.first_id:
            raise PipelineInputError(
                f"log {request.log!r} was trimmed and begins at id {log.first_id}: read it from there on, or leave "
                "the option 'from' out"
            )
        blocks = [(block.first_id, block.last_id, block.bytes) for block in log.block_ranges(first_id, last_id)]
    share = sum(size for _, _, size in blocks) // request.least_partitions
    return balance(blocks, min(request.partition_bytes, max(1, share)))


def balance(blocks: Sequence[tuple[int, int, int]], target: int) -> Iterator[BlockRun]:
    """Join neighbouring *blocks* (first id, last id, bytes) to runs of about *target* bytes, at most 10,000 runs."""
    target = max(target, sum(size for _, _, size in blocks) // MOST_PARTITIONS)
    start, filled = 0, 0
    for first_id, last_id, size in blocks:
        if not filled:
            start = first_id
        filled += max(size, 1)
        if filled >= target:
            yield BlockRun(start, last_id)
            filled = 0
    if filled:
        yield BlockRun(start, blocks[-1][1])
