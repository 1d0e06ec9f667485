"""Walking the demo's stages in order, once each, however often the walk is cut short."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from millstream.core.closing import ClosesOnExit
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.demo.plan import DemoPlan
from millstream.demo.progress import ProgressReporter
from millstream.demo.stage_figures import StageMetrics
from millstream.node import Node

SPARK = "start-spark"
"""Starting Spark is not a stage, because every run needs it; but its seconds are reported like those of a stage."""


class StageResult(NamedTuple):
    """The result of a stage: counts (the main one first), bytes of content, facts for later stages."""

    counts: dict[str, int]
    bytes: int = 0
    facts: Mapping[str, Any] = {}


class DemoRun(ClosesOnExit):
    """The context of a stage: the node, the plan, the results of earlier stages, and the receiver of progress."""

    def __init__(self, node: Node, plan: DemoPlan, folder: Path, reporter: ProgressReporter) -> None:
        self.node = node
        self.plan = plan
        self.folder = folder
        self.figures: dict[str, StageMetrics] = {}
        self.step = reporter.step
        self._resources = contextlib.ExitStack()
        self._spark: Any = None

    def close(self) -> None:
        """Close all that was opened. Closing again does nothing."""
        self._resources.close()

    def facts(self, stage: str) -> Mapping[str, Any]:
        """The facts of the earlier stage *stage*."""
        return self.figures[stage].facts

    @property
    def spark(self) -> Any:
        """The Spark session; started when first asked for, stopped at the end of the walk."""
        if self._spark is None:
            self._spark = self._resources.enter_context(self.node.spark.session())
        return self._spark


class Stage(NamedTuple):
    """A step of the demo. ``run`` may be cut short at any point and run again: it adds nothing twice.

    With ``spark`` a session is started before the stage's own time begins; one that is ``fresh`` is run each time, also
    where an earlier run has recorded it.
    """

    name: str
    title: str
    run: Callable[[DemoRun], StageResult]
    spark: bool = False
    fresh: bool = False


def run_stages(stages: Sequence[Stage], demo_run: DemoRun, reporter: ProgressReporter) -> list[StageMetrics]:
    """Run *stages*; those with a record in the walk's folder are passed by, and their figures told again."""
    for stage in stages:
        figures = None if stage.fresh else _recorded(demo_run.folder, stage)
        if figures is None:
            if stage.spark and SPARK not in demo_run.figures:
                demo_run.figures[SPARK] = _start_spark(demo_run, reporter)
            figures = _run(stage, demo_run, reporter)
        demo_run.figures[stage.name] = figures
        reporter.end(figures)
    return list(demo_run.figures.values())


def _start_spark(demo_run: DemoRun, reporter: ProgressReporter) -> StageMetrics:
    reporter.begin("start Spark")
    begun = demo_run.node.clock.monotonic()
    _ = demo_run.spark
    figures = StageMetrics(SPARK, "start Spark", round(demo_run.node.clock.monotonic() - begun, 3), {})
    reporter.end(figures)
    return figures


def _run(stage: Stage, demo_run: DemoRun, reporter: ProgressReporter) -> StageMetrics:
    reporter.begin(stage.title)
    begun = demo_run.node.clock.monotonic()
    done = stage.run(demo_run)
    seconds = round(demo_run.node.clock.monotonic() - begun, 3)
    figures = StageMetrics(stage.name, stage.title, seconds, done.counts, done.bytes, dict(done.facts))
    if not stage.fresh:
        write_durably(_record(demo_run.folder, stage), msgspec.json.encode(figures))
    return figures


def _recorded(folder: Path, stage: Stage) -> StageMetrics | None:
    path = _record(folder, stage)
    if not path.exists():
        return None
    figures = msgspec.json.decode(path.read_bytes(), type=prepared(StageMetrics))
    return msgspec.structs.replace(figures, earlier=True)


def _record(folder: Path, stage: Stage) -> Path:
    return folder / f"{stage.name}.json"
