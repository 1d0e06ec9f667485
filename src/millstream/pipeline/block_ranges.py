"""Runs of messages: how the reading of a log is shared out among tasks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec
from pyspark.sql.datasource import InputPartition

from millstream.core.decoding import prepared
from millstream.log import LogSpec
from millstream.log.block_location import BlockLocation
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.planning_store import open_to_plan
from millstream.pipeline.reachable import FileIdentity, store_identity
from millstream.pipeline.read_options import LogReadOptions

MOST_PARTITIONS = 10_000

ROW_BYTES = 50
"""The cost of a message besides the bytes of its block, in bytes: passing a message on takes time, however small it
is."""

LEAST_BYTES = 1_000_000
"""A smaller run does not justify a separate task, unless one was requested."""


_Run = tuple[int, int, FileIdentity, list[BlockLocation]]


class IdRangePartition(InputPartition):
    """Messages *first_id* to *last_id*, the work of one task; *files* are what the driver saw of the log store.

    Of a log in a bucket the task also gets where the blocks lie: it reads them with no look at the log.
    """

    def __init__(
        self, first_id: int, last_id: int, files: FileIdentity = (), locations: Sequence[BlockLocation] = ()
    ) -> None:
        super().__init__((first_id, last_id))
        self.first_id = first_id
        self.last_id = last_id
        self.files = files
        self._locations = msgspec.msgpack.encode(locations)  # small, and quickly passed on

    @property
    def locations(self) -> Sequence[BlockLocation]:
        """The locations of all blocks; none if the log store must be read instead."""
        return msgspec.msgpack.decode(self._locations, type=prepared(list[BlockLocation]))


def encode_run(run: IdRangePartition) -> bytes:
    """*run* as a value of a table, which :func:`decode_run` reads."""
    return msgspec.msgpack.encode((run.first_id, run.last_id, run.files, run.locations))


def decode_run(data: bytes) -> IdRangePartition:
    """The run that :func:`encode_run` has made *data* of."""
    return IdRangePartition(*msgspec.msgpack.decode(data, type=prepared(_Run)))


def plan_block_ranges(
    request: LogReadOptions, first_id: int | None = None, last_id: int | None = None
) -> list[IdRangePartition]:
    """The runs of the log of *request* from *first_id* to *last_id*, of the size that it asks for.

    Without them all that *request* asks for. Every id is in one run, also where the store has
    no block for it: only its reader can find that it is missing. Raises :class:`PipelineInputError` where the log was
    trimmed beyond *first_id*.
    """
    with open_to_plan(request.store) as store:
        log = store.log(LogSpec(request.log), create=False)
        first_id = request.first_of(log) if first_id is None else first_id
        last_id = request.last_of(log) if last_id is None else last_id
        begin = log.first_id if first_id is None else first_id
        end = log.last_id if last_id is None else min(last_id, log.last_id)
        if begin < log.first_id:
            raise PipelineInputError(
                f"cannot read from id {begin}: log {request.log!r} was trimmed and begins at id {log.first_id}; set "
                "the option 'from' to that id or a later one, or omit it"
            )
        if end < begin:
            return []
        locations = log.block_locations(begin, end)
        blocks = [(max(one.first_id, begin), min(one.last_id, end), one.size) for one in locations] or [
            (block.first_id, block.last_id, block.bytes) for block in log.block_ranges(begin, end)
        ]
    share = max(LEAST_BYTES, sum(map(_cost, blocks)) // request.least_partitions)
    files = store_identity(request.store)
    runs = without_id_gaps(group_blocks(blocks, min(request.partition_bytes, share)), begin, end)
    return [
        IdRangePartition(run.first_id, run.last_id, files, _within(locations, run.first_id, run.last_id))
        for run in runs
    ]


def group_blocks(blocks: Sequence[tuple[int, int, int]], target: int) -> Iterator[IdRangePartition]:
    """Join neighbouring *blocks* (first id, last id, bytes) to runs that cost about *target*, at most 10,000 runs."""
    target = max(target, sum(map(_cost, blocks)) // MOST_PARTITIONS)
    start, filled = 0, 0
    for block in blocks:
        if not filled:
            start = block[0]
        filled += _cost(block)
        if filled >= target:
            yield IdRangePartition(start, block[1])
            filled = 0
    if filled:
        yield IdRangePartition(start, blocks[-1][1])


def without_id_gaps(runs: Iterator[IdRangePartition], first_id: int, last_id: int) -> Iterator[IdRangePartition]:
    """*runs* without ids between them, from *first_id* to *last_id*: each continues to where the next one begins."""
    begin = first_id
    next(runs, None)
    for run in runs:
        yield IdRangePartition(begin, run.first_id - 1)
        begin = run.first_id
    yield IdRangePartition(begin, last_id)


def _within(locations: Sequence[BlockLocation], first_id: int, last_id: int) -> Sequence[BlockLocation]:
    start = bisect_left(locations, first_id, key=attrgetter("last_id"))
    return locations[start : bisect_right(locations, last_id, key=attrgetter("first_id"))]


def _cost(block: tuple[int, int, int]) -> int:
    first_id, last_id, size = block
    return size + ROW_BYTES * (last_id - first_id + 1)
