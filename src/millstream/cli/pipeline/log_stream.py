"""Batch a log as a Spark stream, for the commands with ``--stream``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.batching.ticks import idle_log_ticker
from millstream.cli.spark_progress import shown
from millstream.log import LogSpec
from millstream.node import Node

if TYPE_CHECKING:
    from millstream.pipeline.jobs.batch_stream import StreamRun
    from millstream.pipeline.output.batch_sink import Trigger


def run_log_stream(
    node: Node,
    log: str,
    output: str,
    *,
    available_now: bool,
    per_trigger: int,
    shards: int,
    ticks: bool,
    stopped: Callable[[], bool],
    on_trigger: Callable[[Trigger], None],
    shown_as: str = "",
    **options: Any,
) -> StreamRun:
    """Batch *log* into the log *output*, until *stopped*, as :func:`~millstream.pipeline.jobs.batch_stream.run_stream`.

    *shown_as* names the job whose progress is shown on a terminal (empty: none is); *options* are those of
    ``run_stream``.
    """
    from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream

    source = node.logs.store.log(LogSpec(log), create=False)
    with (
        node.batching.state_file(output) as state,
        node.spark.session(registered=False) as spark,
        shown(spark, shown_as) if shown_as else contextlib.nullcontext(),
    ):
        plan = StreamPlan(
            store_url=node.settings.log_url,
            log=log,
            output=output,
            rules=node.batching.rules,
            state=state.path,
            shards=shards,
            per_trigger=per_trigger,
        )
        return run_stream(
            spark,
            plan,
            available_now=available_now,
            stopped=stopped,
            on_trigger=on_trigger,
            on_saved=state.keep,
            ticks=idle_log_ticker(source, node.clock) if ticks and not available_now else None,
            clock=node.clock,
            **options,
        )
