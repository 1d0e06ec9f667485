"""Working off queues before the eyes of a person, and what came of it."""

from __future__ import annotations

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from millstream.cli.common import is_terminal, print_json
from millstream.mill.tasks import QueueName
from millstream.mill.workers import Tally
from millstream.node import Node


def work_off(node: Node, *names: QueueName) -> Tally:
    """Work on the queues until they are drained, with a progress bar on a terminal."""
    total = sum(node.queue(name).depth().open for name in names)
    with progress_bar(not is_terminal() or not total) as progress:
        bar = progress.add_task("tasks", total=total)
        manager = node.workers(*names, on_progress=lambda tally: progress.update(bar, completed=tally.done))
        return manager.run_until_drained()


def progress_bar(disable: bool) -> Progress:
    """A bar of items done; not drawn with *disable*, and gone when its block is left."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), disable=disable, transient=True
    )


def print_tally(tally: Tally, as_json: bool) -> None:
    if as_json:
        print_json(tally)
    else:
        click.echo(f"tasks: {tally.done:,} done, {tally.failed:,} tried again, {tally.dead:,} dead")
