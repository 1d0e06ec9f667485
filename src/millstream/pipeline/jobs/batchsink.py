"""Where a stream's batches go: into a log, exactly once.

What comes of a trigger is one commit whose sequence is the id of the trigger's last message, as with the service in
process. A trigger that Spark makes again is known by it, and dropped by the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batchlog import OUTPUT_SCHEMA, output_messages
from millstream.core.clock import Clock
from millstream.log import Writer
from millstream.pipeline.errors import PipelineError


class Trigger(msgspec.Struct, frozen=True):
    """One trigger that was written: its ids, what came of it, and when more will be due (a clock, None: never).

    ``seconds`` is what reading, batching and writing took; ``repeated`` that the log had it already.
    """

    first_id: int
    last_id: int
    batches: int
    rejected: int
    due: int | None
    seconds: float
    repeated: bool


class BatchSink:
    """Appends what shards give (``CLOSED_SCHEMA``) to a log by its *writer*, a trigger at a time."""

    def __init__(self, writer: Writer, clock: Clock) -> None:
        self._writer, self._clock = writer, clock
        self._untold: deque[Trigger] = deque()

    def triggers(self) -> Iterator[Trigger]:
        """The triggers that were written since this was last asked."""
        while self._untold:
            yield self._untold.popleft()

    def __call__(self, frame: Any, _number: int) -> None:
        """Write one micro-batch of Spark."""
        began = self._clock.monotonic()
        found = frame.toArrow()
        if not found.num_rows:
            return
        first_id, last_id = (_same(found[name]) for name in ("first_id", "last_id"))
        parts = [pa.ipc.open_stream(data).read_all() for data in found["closed"].to_pylist()]
        rows = pa.concat_tables([OUTPUT_SCHEMA.empty_table(), *parts])
        repeated = self._writer.sequence >= last_id
        self._writer.append(output_messages([rows]), sequence=last_id)
        rejected = pc.sum(pc.equal(rows["kind"], "reject")).as_py() or 0
        due: int | None = pc.min(found["due"]).as_py()
        seconds = round(self._clock.monotonic() - began, 3)
        self._untold.append(Trigger(first_id, last_id, len(rows) - rejected, rejected, due, seconds, repeated))


def _same(column: Any) -> int:
    """The one value of *column*: all shards were given the same trigger."""
    values = pc.unique(column).to_pylist()
    if len(values) != 1:
        raise PipelineError(f"the shards of a trigger disagree on {values}: please report this")
    return int(values[0])
