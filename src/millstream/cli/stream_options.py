"""What the commands that batch a log as a Spark stream are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--output", metavar="LOG", help="With --stream: the log that gets the batches (made where absent)."),
    click.option("--available-now", is_flag=True, help="With --stream: take what is there now and end."),
    click.option(
        "--per-trigger",
        type=click.IntRange(min=1),
        default=200_000,
        show_default=True,
        help="With --stream: most messages that are batched together.",
    ),
    click.option(
        "--shards",
        type=click.IntRange(1, 4096),
        default=4,
        show_default=True,
        help="With --stream: parts of the sources.",
    ),
    click.option("--ticks/--no-ticks", default=True, show_default=True, help="With --stream: let quiet sources close."),
)


def stream_options(command: Command) -> Command:
    """Give *command* ``--output``, ``--available-now``, ``--per-trigger``, ``--shards`` and ``--ticks``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
