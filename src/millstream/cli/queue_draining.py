"""Drain queues with a progress display, and print the result."""

from __future__ import annotations

import threading
from typing import Self

import click
from rich.progress import TextColumn

from millstream.cli.common import is_terminal, print_json
from millstream.cli.progress import drawn, progress_bar
from millstream.core.clock import Clock, SystemClock
from millstream.mill.tasks import QueueName
from millstream.mill.workers.manager import WorkTally
from millstream.node import Node

EVERY = 60.0
"""Seconds between two status lines without a terminal."""


def drain_queues(node: Node, *names: QueueName) -> WorkTally:
    """Work on the queues until they are drained, with a progress bar on a terminal."""
    total = sum(node.queues.open(name).depth().open for name in names)
    with progress_bar() as progress:
        bar = progress.add_task("tasks", total=total)
        manager = node.mill.workers(*names, on_progress=lambda tally: progress.update(bar, completed=tally.done))
        return manager.run_until_drained()


class WorkStatus:
    """Progress of workers that run until they are stopped: one updated line on a terminal, elsewhere a line per minute.

    Use it as a context manager, and call :meth:`show` after each group of tasks. Thread-safe.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tallies: dict[str, tuple[int, int, int]] = {}
        self._lock = threading.Lock()
        self._started = self._told = self._clock.monotonic()
        self._done_before = 0
        self._progress = drawn(TextColumn("{task.description}"))
        self._line = self._progress.add_task("no task yet", total=None)

    def show(self, pool: str, tally: WorkTally) -> None:
        """Show the progress of the workers of *pool*."""
        with self._lock:
            self._tallies[pool] = tally.done, tally.failed, tally.dead
            now = self._clock.monotonic()
            if is_terminal():
                self._progress.update(self._line, description=self._text(now, self._started, 0))
            elif now - self._told >= EVERY:
                click.echo(self._text(now, self._told, self._done_before), err=True)
                self._told, self._done_before = now, sum(done for done, _, _ in self._tallies.values())

    def _text(self, now: float, since: float, before: int) -> str:
        done, failed, dead = (sum(column) for column in zip(*self._tallies.values(), strict=True))
        rate = (done - before) / max(now - since, 0.001)
        return f"tasks: {done:,} done ({rate:,.1f} a second), {failed:,} retried, {dead:,} dead"

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def print_tally(tally: WorkTally, as_json: bool) -> None:
    """Print the result of the work."""
    if as_json:
        print_json(tally)
    else:
        click.echo(f"tasks: {tally.done:,} done, {tally.failed:,} retried, {tally.dead:,} dead")
