"""The sink of a stream's batches: a log, exactly once. The output of a trigger is one commit whose sequence is the id
of the trigger's last message, as with the service in process. A trigger that Spark makes again is known by it, and
dropped by the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_log import OUTPUT_SCHEMA, output_messages
from millstream.batching.metrics import record_open
from millstream.core.clock import Clock
from millstream.core.decoding import prepared
from millstream.core.metric_collection.collector import MetricsCollector, MetricsSnapshot
from millstream.log import FencedError, Writer
from millstream.pipeline.errors import PipelineError


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """One trigger that was written: its ids, what came of it, and when more will be due (a clock, None: never).

    ``rejects`` are the refused messages by reason, ``open_sources`` those with records in no closed batch, ``lag`` the
    seconds for which the next batch has been due by the wall clock, ``bytes`` the bodies written; ``seconds`` is what
    reading, batching and writing took; ``repeated`` that the log had it already.
    """

    first_id: int
    last_id: int
    batches: int
    rejected: int
    rejects: dict[str, int]
    open_sources: int
    bytes: int
    due: int | None
    lag: float
    seconds: float
    repeated: bool


class BatchSink:
    """Appends what shards give (``CLOSED_SCHEMA``) to the log *output* by its *writer*, a trigger at a time.

    *appended* is called after each commit, before Spark records the trigger as done.
    What the shards measured is added up in *figures*, of triggers that the log had already once only. Raises
    :func:`lease_lost`.
    """

    def __init__(
        self, output: str, writer: Writer, clock: Clock, figures: MetricsCollector, appended: Callable[[], object]
    ) -> None:
        self._output, self._writer, self._clock, self._figures = output, writer, clock, figures
        self._appended = appended
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
        try:
            if self._writer.append(output_messages([rows]), sequence=last_id) is not None:
                self._appended()
        except FencedError as error:
            raise lease_lost(self._output) from error
        told = MetricsCollector()
        for data in found["figures"].to_pylist():
            told.absorb(msgspec.msgpack.decode(data, type=prepared(MetricsSnapshot)))
        batches, rejected, sources, due = _summed(found)
        record_open(told, sources, due, self._clock.now())
        figures = told.figures()
        if not repeated:
            self._figures.absorb(figures)
        trigger = Trigger(
            first_id=first_id,
            last_id=last_id,
            batches=batches,
            rejected=rejected,
            rejects=figures.by_label("batching_rejects_total", "reason"),
            open_sources=sources,
            bytes=pc.sum(pc.binary_length(rows["body"])).as_py() or 0,
            due=due,
            lag=figures.gauges["batching_settle_lag_seconds", ()],
            seconds=round(self._clock.monotonic() - began, 3),
            repeated=repeated,
        )
        self._untold.append(trigger)


def lease_lost(output: str) -> PipelineError:
    """The error of a stream whose lease of *output* was taken by another host, which may have changed the rules."""
    return PipelineError(
        f"another process has taken over log {output!r}, and may have changed its batching rules: start the stream "
        "again"
    )


def _summed(found: pa.Table) -> tuple[int, int, int, int | None]:
    """Batches, rejects and open sources of all shards, and when the first of them will have more."""
    batches, rejected, sources = (pc.sum(found[name]).as_py() for name in ("batches", "rejected", "open_sources"))
    return batches, rejected, sources, pc.min(found["due"]).as_py()


def _same(column: Any) -> int:
    """The one value of *column*: all shards were given the same trigger."""
    values = pc.unique(column).to_pylist()
    if len(values) != 1:
        raise PipelineError(
            f"the shards of one trigger of the stream returned different values, {values}: please report this"
        )
    return int(values[0])
