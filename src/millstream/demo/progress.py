"""The progress display of the demo: bars on a terminal, elsewhere a line per stage."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from millstream.demo.stage_figures import StageMetrics


class ProgressReporter(Protocol):
    """Told what happens, in order: a stage begins, steps, ends."""

    def begin(self, title: str) -> None: ...

    def step(self, done: int, total: int) -> None:
        """*done* of *total* pieces of the present stage are behind us."""
        ...

    def end(self, figures: StageMetrics) -> None: ...

    def close(self) -> None: ...


class PlainProgress:
    """One line at the end of each stage."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr

    def begin(self, title: str) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        pass

    def end(self, figures: StageMetrics) -> None:
        print(figures.line(), file=self._out, flush=True)

    def close(self) -> None:
        pass


class BarProgress:
    """A progress bar a stage, which turns into the stage's line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._progress.start()
        self._task: TaskID | None = None

    def begin(self, title: str) -> None:
        self._task = self._progress.add_task(title, total=None)

    def step(self, done: int, total: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def end(self, figures: StageMetrics) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._console.print(figures.line(), highlight=False)

    def close(self) -> None:
        self._progress.stop()
