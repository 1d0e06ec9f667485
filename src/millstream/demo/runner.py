"""Walking the demo's stages in order, once each, however often the walk is cut short.

What needs no other stage begins at once, in threads of its own: the start of Spark, and the first part of some stages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from threading import Event, Thread
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


class Lead(NamedTuple):
    """How long a part of a stage took that began ahead of it, and how long the stage had to wait for it, in seconds."""

    seconds: float = 0.0
    waited: float = 0.0

    @property
    def beside(self) -> float:
        """The seconds in which other stages ran too."""
        return max(0.0, self.seconds - self.waited)


class DemoRun(ClosesOnExit):
    """The context of a stage: the node, the plan, the results of earlier stages, and the receiver of progress."""

    def __init__(self, node: Node, plan: DemoPlan, folder: Path, reporter: ProgressReporter) -> None:
        self.node = node
        self.plan = plan
        self.folder = folder
        self.figures: dict[str, StageMetrics] = {}
        self.step = reporter.step
        self.closing = Event()
        self._resources = contextlib.ExitStack()
        self._ahead: dict[str, Future[float]] = {}
        self._stops: list[Callable[[], None]] = []
        self._spark: Any = None

    def close(self) -> None:
        """Wait until what runs in threads has seen ``closing``, and close all that was opened; again does nothing.

        A session of Spark that is still starting is not waited for, so that Ctrl-C is quick: it ends with this process.
        """
        self.closing.set()
        for stop in self._stops:
            stop()
        wait(future for name, future in self._ahead.items() if name != SPARK)
        self._resources.close()

    def stop_at_close(self, stop: Callable[[], None]) -> None:
        """Call *stop* when the run closes; at once if it does already."""
        self._stops.append(stop)
        if self.closing.is_set():
            stop()

    def facts(self, stage: str) -> Mapping[str, Any]:
        """The facts of the earlier stage *stage*."""
        return self.figures[stage].facts

    @property
    def spark(self) -> Any:
        """The Spark session; started before the first stage that needs it, stopped at the end of the walk."""
        return self._spark

    def start_spark(self) -> None:
        """Start the Spark session."""
        self._spark = self._resources.enter_context(self.node.spark.session(registered=False))
        if self.closing.is_set():
            self._resources.close()

    def begin(self, name: str, work: Callable[[], None], *, after: tuple[str, ...] = ()) -> None:
        """Begin *work*, ahead of the stage *name*, in a thread.

        It begins when all that was begun as one of *after* has ended; never if that fails, or the run is closing then.
        """
        first = [self._ahead[each] for each in after if each in self._ahead]
        self._ahead[name] = future = Future[float]()
        Thread(target=self._run_ahead, args=(work, first, future), name=f"demo-{name}", daemon=True).start()

    def await_lead(self, name: str) -> Lead:
        """Wait for what was begun ahead of the stage *name*, if anything. Raises what that raised."""
        if name not in self._ahead:
            return Lead()
        began = self.node.clock.monotonic()
        seconds = self._ahead[name].result()
        return Lead(seconds, self.node.clock.monotonic() - began)

    def _run_ahead(self, work: Callable[[], None], first: Sequence[Future[float]], future: Future[float]) -> None:
        try:
            for each in first:
                each.result()
            began = self.node.clock.monotonic()
            if not self.closing.is_set():
                work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(self.node.clock.monotonic() - began)


class Stage(NamedTuple):
    """A step of the demo. ``run`` may be cut short at any point and run again: it adds nothing twice.

    With ``spark`` a session is started before the stage's own time begins; one that is ``fresh`` is run each time, also
    where an earlier run has recorded it. ``ahead`` is a part that runs in a thread, beside earlier stages: it begins
    with the walk or with the stage ``beside``, after what is ahead of the stages ``after``. ``run`` follows when it has
    ended. It ends early once the walk is ``closing``.
    """

    name: str
    title: str
    run: Callable[[DemoRun], StageResult]
    spark: bool = False
    fresh: bool = False
    ahead: Callable[[DemoRun], None] | None = None
    beside: str = ""
    after: tuple[str, ...] = ()


def run_stages(stages: Sequence[Stage], demo_run: DemoRun, reporter: ProgressReporter) -> list[StageMetrics]:
    """Run *stages*; those with a record in the walk's folder are passed by, and their figures told again."""
    recorded = {stage.name: None if stage.fresh else _recorded(demo_run.folder, stage) for stage in stages}
    left = [stage for stage in stages if recorded[stage.name] is None]
    if any(stage.spark for stage in left):
        demo_run.begin(SPARK, demo_run.start_spark)
    _begin_ahead(left, demo_run, beside="")
    for stage in stages:
        _begin_ahead(left, demo_run, beside=stage.name)
        figures = recorded[stage.name]
        if figures is None:
            if stage.spark and SPARK not in demo_run.figures:
                demo_run.figures[SPARK] = _await_spark(demo_run, reporter)
            figures = _run(stage, demo_run, reporter)
        demo_run.figures[stage.name] = figures
        reporter.end(figures)
    return list(demo_run.figures.values())


def _begin_ahead(stages: Sequence[Stage], demo_run: DemoRun, *, beside: str) -> None:
    """Begin what is ahead of one of *stages* and begins with the stage *beside*, or with the walk."""
    for stage in stages:
        if stage.ahead is not None and stage.beside == beside:
            demo_run.begin(stage.name, partial(stage.ahead, demo_run), after=stage.after)


def _await_spark(demo_run: DemoRun, reporter: ProgressReporter) -> StageMetrics:
    reporter.begin("start Spark")
    # This takes a second, and is done while Java starts. The first module is the one that the thread which starts Spark
    # imports: whoever is second waits for it, while PySpark, imported by two threads at once, fails.
    import millstream.pipeline.gateway_connection
    import millstream.pipeline.jobs.batch
    import millstream.pipeline.jobs.report  # noqa: F401

    lead = demo_run.await_lead(SPARK)
    figures = StageMetrics(SPARK, "start Spark", round(lead.seconds, 3), {}, beside=round(lead.beside, 3))
    reporter.end(figures)
    return figures


def _run(stage: Stage, demo_run: DemoRun, reporter: ProgressReporter) -> StageMetrics:
    reporter.begin(stage.title)
    lead = demo_run.await_lead(stage.name)
    begun = demo_run.node.clock.monotonic()
    done = stage.run(demo_run)
    seconds = round(lead.seconds + demo_run.node.clock.monotonic() - begun, 3)
    beside = round(lead.beside, 3)
    figures = StageMetrics(stage.name, stage.title, seconds, done.counts, done.bytes, dict(done.facts), beside=beside)
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
