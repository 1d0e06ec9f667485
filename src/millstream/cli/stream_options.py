"""Options of the commands that batch a log as a Spark stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from millstream.log import user_log

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--output", metavar="LOG", help="Required with --stream: log of the batches; created if missing."),
    click.option("--available-now", is_flag=True, help="With --stream: process the existing messages, then exit."),
    click.option(
        "--per-trigger",
        type=click.IntRange(min=1),
        default=200_000,
        show_default=True,
        help="With --stream: maximum messages per trigger.",
    ),
    click.option(
        "--shards",
        type=click.IntRange(1, 4096),
        default=4,
        show_default=True,
        help="With --stream: number of shards.",
    ),
    click.option(
        "--ticks/--no-ticks",
        default=True,
        show_default=True,
        help="With --stream: append ticks (messages with a time only) to LOG, so that batches of quiet sources close.",
    ),
)


rules_of_option = click.option(
    "--rules-of",
    metavar="LOG",
    help="Batch by the rules of this log of batches, with their changes (default: the rules in the settings).",
)


_STREAM_OPTIONS = ("output", "available_now", "per_trigger", "shards", "ticks")
"""The names of the parameters that :func:`stream_options` gives to a command."""

_ONLY_WITH_STREAM = (
    "can only be used with --stream; without it, the command processes the existing messages once, and exits"
)
_NOT_WITH_STREAM = "cannot be combined with --stream: omit --stream to process the existing messages once"


def check_way(*, stream: bool, history_options: Iterable[str], stream_options: Iterable[str]) -> None:
    """Refuse options that go with the other way of running a command that batches history or, with *stream*, continues.

    *history_options* are parameters for history alone, *stream_options* those for a stream beside
    :func:`stream_options`. Raises ``click.UsageError``, also for a stream without an output, and
    :class:`~millstream.log.SystemLogError`.
    """
    output = click.get_current_context().params["output"]
    if stream and not output:
        raise click.UsageError("--stream requires --output LOG: name the log that receives the batches")
    if stream:
        user_log(output)
        _refuse_given(history_options, _NOT_WITH_STREAM)
    else:
        _refuse_given((*_STREAM_OPTIONS, *stream_options), _ONLY_WITH_STREAM)


def _refuse_given(names: Iterable[str], why: str) -> None:
    """Raise ``click.UsageError`` where the command line has one of the options *names*; *why* ends the sentence."""
    context = click.get_current_context()
    given = {name for name in names if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    written = [
        (each.secondary_opts if context.params[each.name] is False and each.secondary_opts else each.opts)[0]
        for each in context.command.params
        if each.name in given
    ]
    if written:
        raise click.UsageError(f"{', '.join(written)} {why}")


def stream_options(command: Command) -> Command:
    """Give *command* ``--output``, ``--available-now``, ``--per-trigger``, ``--shards`` and ``--ticks``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
