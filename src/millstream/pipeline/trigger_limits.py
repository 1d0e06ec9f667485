"""How far a streaming query goes in its next trigger: offsets of a log are its ids.

An offset is ``{"id": n}``, the last message that has been taken. What a trigger holds depends on its two offsets alone,
so that Spark can make it again after a crash.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.log import LogSpec
from millstream.log.errors import WHY_SHORTER
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.planning_store import open_to_plan
from millstream.pipeline.read_options import LogReadOptions

Offset = dict[str, int]

_IDS_A_LOOK = 1_000_000


class TriggerLimitedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planning side of a streaming reader of what *request* says; reading is for subclasses.

    A trigger takes as many messages as ``maxMessagesPerTrigger`` and ``maxBytesPerTrigger`` allow, and none goes past
    the barrier. With the trigger ``availableNow`` the query ends where the log ended when it was started.
    """

    def __init__(self, request: LogReadOptions) -> None:
        self._request = request
        self._target: int | None = None

    def initialOffset(self) -> Offset:
        """Before the first message."""
        request = self._request
        if request.first_id is not None:
            return {"id": request.first_id - 1}
        with open_to_plan(request.store) as store:
            log = store.log(LogSpec(request.log), create=False)
            first_id = request.first_of(log)
            return {"id": (log.first_id if first_id is None else first_id) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many messages as a trigger may hold; as many bytes, where only these are limited."""
        request = self._request
        if request.per_trigger is not None:
            return ReadMaxRows(request.per_trigger)
        return ReadAllAvailable() if request.bytes_per_trigger is None else ReadMaxBytes(request.bytes_per_trigger)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The last id of a trigger that begins after *start*."""
        done, end = start["id"], self._end()
        if end < done:
            raise PipelineInputError(
                f"the query has read log {self._request.log!r} up to id {done}, but the log now ends at id {end}: "
                f"{WHY_SHORTER}. Start the query with a new checkpoint, and with the option from={end + 1} to read "
                "only new messages"
            )
        if isinstance(limit, ReadMaxRows):
            end = min(end, done + limit.max_rows)
        if done < self._request.barrier:
            end = min(end, self._request.barrier)
        if not isinstance(limit, ReadAllAvailable) and (most := self._request.bytes_per_trigger) is not None:
            end = self._end_by_bytes(done, end, most)
        return {"id": max(end, done)}

    def reportLatestOffset(self) -> Offset:
        """The end of the log, for the query's progress."""
        return {"id": self._end()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the present end of the log for the query's end."""
        self._target = self._end()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The work of the trigger after *start* up to *end*."""
        if end["id"] <= start["id"]:
            return []
        return self.plan(start["id"] + 1, end["id"])

    @abc.abstractmethod
    def plan(self, first_id: int, last_id: int) -> Sequence[InputPartition]:
        """The work on the messages from *first_id* to *last_id*, of which there are some."""

    def _end_by_bytes(self, done: int, end: int, most: int) -> int:
        """The last id after *done*, *end* at most, whose blocks take *most* bytes together, or the first block more.

        No block is cut: a task that reads a part of one opens all of it.
        """
        request, left = self._request, most
        with open_to_plan(request.store) as store:
            log = store.log(LogSpec(request.log), create=False)
            for first in range(done + 1, end + 1, _IDS_A_LOOK):  # a long backlog is not looked through at each trigger
                for block in log.block_ranges(first, min(end, first + _IDS_A_LOOK - 1)):
                    if block.bytes > left and block.first_id > done + 1:
                        return block.first_id - 1
                    left -= block.bytes
                    if left <= 0:
                        return block.last_id
        return end

    def _end(self) -> int:
        if self._target is not None:
            return self._target
        request = self._request
        with open_to_plan(request.store) as store:
            log = store.log(LogSpec(request.log), create=False)
            end, last_id = log.last_id, request.last_of(log)
        return end if last_id is None else min(end, last_id)
