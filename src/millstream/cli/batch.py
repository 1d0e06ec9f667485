"""``millstream batch``: JSON lines of events in, JSON lines of batches and rejects out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, BinaryIO, TextIO, get_args

import click

from millstream.batching import (
    Batcher,
    BatcherOutput,
    BatchingMode,
    BoundBrokenError,
    Event,
)
from millstream.batching.event import EventBatch, Reject
from millstream.batching.json_lines import read_events, write_line
from millstream.cli.batch_rules import cap_options, given_rules, late_options, rule_options
from millstream.cli.command_group import load_command
from millstream.cli.examples import example
from millstream.cli.output import ends_with_reader

_CHUNK = 8192

Group = Iterable[EventBatch | Reject]
"""Number of lines that are printed together."""


class _WithTools(click.Command):
    """A command that calls another one if its first argument names a tool; a file with such a name is ``./explain``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not args or args[0] not in TOOLS:
            return super().make_context(info_name, args, parent, **extra)
        return load_command(TOOLS[args[0]]).make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


TOOLS = {
    "explain": "millstream.cli.batch_tools:explain_command",
    "shrink": "millstream.cli.batch_tools:shrink_command",
    "serve": "millstream.cli.batch_serve:serve_command",
    "rules": "millstream.cli.batch_rule_changes:rules_command",
    "advise": "millstream.cli.batch_advise:advise_command",
}
"""The tools of ``millstream batch`` and where each is defined; a tool is loaded only when it is called."""


@example("millstream batch --window 1200000000 --max-delay 3600000000 events.jsonl")
@click.command(
    cls=_WithTools,
    epilog="Times are integers of one unit of your choice, the same in the options and in the lines. A time with a "
    "unit, such as 30m, is taken in microseconds: then the lines must have microseconds, too. "
    "Tools: millstream batch explain (why a batch began and ended, why an event was refused), "
    "millstream batch shrink (how the mode faithful depends on the order of arrival), "
    "millstream batch serve (batch a log into another log, as a service), "
    "millstream batch rules (show and change the rules of a log of batches), "
    "millstream batch advise (which rules fit the messages of a log).",
)
@click.argument("file", type=click.File("rb"), default="-")
@rule_options(cut="at_event")
@click.option(
    "--mode",
    type=click.Choice(get_args(BatchingMode)),
    default="order-free",
    show_default=True,
    help="order-free: independent of the line order; faithful: thin-edge's algorithm, in line order.",
)
@cap_options
@late_options
@click.option(
    "--ordered",
    is_flag=True,
    help="Lines are sorted by received_at: print each batch as soon as it is final, in little memory.",
)
@ends_with_reader
def batch(*, file: BinaryIO, overrides: TextIO | None, ordered: bool, **given: Any) -> None:
    """Batch the events of FILE (or standard input) by the time they happened.

    \b
    In:   {"id": 1, "key": "temp", "event_time": 110, "received_at": 120, "source": "pump", "digest": "…"}
    Out:  {"batch": "…", "source": "pump", "start": 110, "end": 110, "closed_at": null, "cut": "flush", "events": [1]}
          {"rejected": 2, "reason": "late"}      (or future, duplicate, conflicting_duplicate)

    source, digest and size (in bytes) are optional; any other member is an error, and so is a repeated id. A batch is
    open until no later event can change it; the end of the input closes all open batches, which are printed with
    closed_at null. Without --ordered everything is read before the first line is printed: the batches by closed_at,
    then the rejects by id. --mode faithful does not support --cut, --max-count, --max-bytes or --late. The output of
    `millstream log read LOG --jsonl` is accepted too; ticks in it are skipped.
    """
    _refuse_cut(given["mode"])
    rules = given_rules(overrides, given)
    batcher = Batcher.of(rules)
    events = read_events(file, sized=rules.needs_sizes)
    if given["mode"] == "faithful":
        groups = _replayed(batcher, events)
    elif ordered:
        groups = _streamed(batcher, events)
    else:
        groups = _sorted(batcher, (event for _, event in events))
    _print(groups)


def _refuse_cut(mode: str) -> None:
    """The replayed algorithm has only one rule for cuts, so options for another rule are refused."""
    source = click.get_current_context().get_parameter_source("conflict_cut")
    if mode == "faithful" and source is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--mode faithful does not support --cut: omit one of them")


def _replayed(batcher: Batcher, events: Iterable[tuple[int, Event]]) -> Iterator[Group]:
    for _, event in events:
        yield chain(*batcher.receive(event))
    yield chain(*batcher.flush())


def _streamed(batcher: Batcher, events: Iterable[tuple[int, Event]]) -> Iterator[Group]:
    """The lines are sorted: no later line was received before the ``received_at`` of an earlier one."""
    for number, event in events:
        yield chain(*batcher.advance(event.received_at))
        try:
            yield chain(*batcher.receive(event))
        except BoundBrokenError as error:
            raise BoundBrokenError(f"line {number}: {error} (or omit --ordered)") from error
    yield chain(*batcher.flush())


def _sorted(batcher: Batcher, events: Iterator[Event]) -> Iterator[Group]:
    """The same output for any order of lines: only the latest ``received_at`` of all sets the clock."""
    outcomes: list[BatcherOutput] = []
    latest: int | None = None
    while chunk := list(islice(events, _CHUNK)):
        outcomes.append(batcher.receive_many(chunk))
        newest = max(event.received_at for event in chunk)
        latest = newest if latest is None else max(latest, newest)
    if latest is not None:
        outcomes.append(batcher.advance(latest))
    outcomes.append(batcher.flush())
    yield chain.from_iterable(outcome.batches for outcome in outcomes)
    rejects = list(chain.from_iterable(outcome.rejects for outcome in outcomes))
    rejects.sort(key=lambda reject: (reject.rejected, reject.reason))
    yield rejects


def _print(groups: Iterable[Group]) -> None:
    """Each group is flushed, so that a reader at the other end of a pipe sees it at once."""
    out = sys.stdout.buffer
    for group in groups:
        if lines := b"".join(map(write_line, group)):
            out.write(lines)
            out.flush()
