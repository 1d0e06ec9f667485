"""How far a streaming query goes in its next trigger: offsets of a log are its ids.

An offset is ``{"id": n}``, the last message that has been taken. What a trigger holds depends on its two offsets alone,
so that Spark can make it again after a crash.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millstream.core.clock import SystemClock
from millstream.log import LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.read_options import LogReadOptions
from millstream.stores.tiers import open_store

Offset = dict[str, int]


class TriggerLimitedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planning side of a streaming reader of what *request* says; reading is for subclasses.

    A trigger takes as many messages as ``maxMessagesPerTrigger`` allows, and none goes past the barrier. With the
    trigger ``availableNow`` the query ends where the log ended when it was started.
    """

    def __init__(self, request: LogReadOptions) -> None:
        self._request = request
        self._target: int | None = None

    def initialOffset(self) -> Offset:
        """Before the first message."""
        request = self._request
        if request.first_id is not None:
            return {"id": request.first_id - 1}
        with open_store(request.store, clock=SystemClock()) as store:
            return {"id": store.log(LogSpec(request.log), create=False).first_id - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many messages as a trigger may hold."""
        most = self._request.per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where a trigger that begins after *start* ends."""
        done, end = start["id"], self._end()
        if end < done and self._target is None:
            raise PipelineInputError(
                f"the query has read log {self._request.log!r} up to {done}, but it ends at {end}: it is not the same "
                "log any more; start with a new checkpoint"
            )
        if isinstance(limit, ReadMaxRows):
            end = min(end, done + limit.max_rows)
        if done < self._request.barrier:
            end = min(end, self._request.barrier)
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

    def _end(self) -> int:
        if self._target is not None:
            return self._target
        request = self._request
        with open_store(request.store, clock=SystemClock()) as store:
            end = store.log(LogSpec(request.log), create=False).last_id
        return end if request.last_id is None else min(end, request.last_id)
