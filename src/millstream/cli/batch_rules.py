"""The options of ``millstream batch`` and its tools for the batching rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TextIO, get_args

import click

from millstream.batching import BatchConfig, ConflictCut, LatePolicy, Rulebook
from millstream.batching.rulebook import read_overrides
from millstream.cli.common import Command
from millstream.cli.parameter_types import RecordDuration, SizeType


def rule_options(*, cut: ConflictCut) -> Callable[[Command], Command]:
    """Give a command the options for the rules of every batch, named as in BatchConfig; *cut* is the default cut."""
    options = [
        click.option(
            "--window",
            type=RecordDuration(),
            required=True,
            help="Maximum time from the first to the last event of a batch, such as 30m.",
        ),
        click.option(
            "--max-delay",
            type=RecordDuration(),
            required=True,
            help="Maximum time from an event to its receipt, such as 20m.",
        ),
        click.option(
            "--leap",
            type=RecordDuration(),
            help="Maximum time by which an event may be ahead of its receipt (default: --max-delay).",
        ),
        click.option(
            "--cut",
            "conflict_cut",
            type=click.Choice(get_args(ConflictCut)),
            default=cut,
            show_default=True,
            help="Where a repeated key ends a batch: before the event that repeats it, or halfway between both.",
        ),
    ]
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def cap_options(command: Command) -> Command:
    """Give *command* the caps on a batch."""
    count = click.option(
        "--max-count", type=int, metavar="EVENTS", help="Maximum number of events in a batch (default: no limit)."
    )
    size = click.option(
        "--max-bytes",
        type=SizeType(),
        help="Maximum size of a batch, such as 64KiB; every line must have size (default: no limit).",
    )
    return count(size(command))


def late_options(command: Command) -> Command:
    """Add to *command* the options for late events and for rules of single sources and keys."""
    options = [
        click.option(
            "--late",
            type=click.Choice(get_args(LatePolicy)),
            default="reject",
            show_default=True,
            help="Late events: reject them, batch them separately (side), or amend earlier batches.",
        ),
        click.option(
            "--grace",
            type=RecordDuration(),
            help="Time after --max-delay in which late events are accepted, such as 1h; required with side and amend.",
        ),
        click.option(
            "--overrides",
            type=click.File("r", encoding="utf-8"),
            metavar="TOML",
            help="File with [[override]] tables of rules for some sources and keys (docs/formats/batch-id.md).",
        ),
    ]
    return functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def given_rules(overrides: TextIO | None, given: Mapping[str, Any]) -> Rulebook:
    """The rules that the options of :func:`rule_options`, :func:`cap_options` and :func:`late_options` have *given*."""
    listed = read_overrides(overrides.read(), given, overrides.name) if overrides else ()
    return Rulebook(BatchConfig(**given), listed)
