"""Walking the demo's stages in order, once each, however often the walk is cut short."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from millstream.core.durable import write_durably
from millstream.demo.figures import Figures
from millstream.demo.plan import DemoPlan
from millstream.demo.progress import Teller
from millstream.node import Node

SPARK = "start-spark"
"""Starting Spark is no stage, for every run needs it anew; but its seconds are told like one's."""


class Done(NamedTuple):
    """What a stage says it did: counts (the main one first), bytes of content, facts for later stages."""

    counts: dict[str, int]
    bytes: int = 0
    facts: Mapping[str, Any] = {}


class Walk:
    """What a stage works with: the node, the plan, what earlier stages found, and whom to tell of progress."""

    def __init__(self, node: Node, plan: DemoPlan, folder: Path, teller: Teller) -> None:
        self.node = node
        self.plan = plan
        self.folder = folder
        self.figures: dict[str, Figures] = {}
        self.step = teller.step
        self._resources = contextlib.ExitStack()
        self._spark: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def facts(self, stage: str) -> Mapping[str, Any]:
        """What *stage*, an earlier one, left for later ones."""
        return self.figures[stage].facts

    @property
    def spark(self) -> Any:
        """The Spark session; started when first asked for, stopped at the end of the walk."""
        if self._spark is None:
            self._spark = self._resources.enter_context(self.node.spark())
        return self._spark


class Stage(NamedTuple):
    """A piece of the road. ``run`` may be cut short at any point and run again: it adds nothing twice.

    With ``spark`` a session is started before the stage's own time begins; one that is ``fresh`` is run each time, also
    where an earlier run has recorded it.
    """

    name: str
    title: str
    run: Callable[[Walk], Done]
    spark: bool = False
    fresh: bool = False


def walk_road(stages: Sequence[Stage], walk: Walk, teller: Teller) -> list[Figures]:
    """Run *stages*; those with a record in the walk's folder are passed by, and their figures told again."""
    for stage in stages:
        figures = None if stage.fresh else _recorded(walk.folder, stage)
        if figures is None:
            if stage.spark and SPARK not in walk.figures:
                walk.figures[SPARK] = _start_spark(walk, teller)
            figures = _run(stage, walk, teller)
        walk.figures[stage.name] = figures
        teller.end(figures)
    return list(walk.figures.values())


def _start_spark(walk: Walk, teller: Teller) -> Figures:
    teller.begin("start Spark")
    begun = walk.node.clock.monotonic()
    _ = walk.spark
    figures = Figures(SPARK, "start Spark", round(walk.node.clock.monotonic() - begun, 3), {})
    teller.end(figures)
    return figures


def _run(stage: Stage, walk: Walk, teller: Teller) -> Figures:
    teller.begin(stage.title)
    begun = walk.node.clock.monotonic()
    done = stage.run(walk)
    seconds = round(walk.node.clock.monotonic() - begun, 3)
    figures = Figures(stage.name, stage.title, seconds, done.counts, done.bytes, dict(done.facts))
    if not stage.fresh:
        write_durably(_record(walk.folder, stage), msgspec.json.encode(figures))
    return figures


def _recorded(folder: Path, stage: Stage) -> Figures | None:
    path = _record(folder, stage)
    if not path.exists():
        return None
    figures = msgspec.json.decode(path.read_bytes(), type=Figures)
    return msgspec.structs.replace(figures, earlier=True)


def _record(folder: Path, stage: Stage) -> Path:
    return folder / f"{stage.name}.json"
